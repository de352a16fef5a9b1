// What the kernels of layers that remember in a state of fixed size know of a layer and its rows;
// kernels/src/recurrent.rs has the formulas.
//
// A state goes from token to token, and every token's sums have an order that shapes alone decide.
// So neither where a sequence is cut nor what runs beside it changes a bit.
#pragma once
#include "mma.cuh"

#include "attention.cuh"

// One sequence: its rows, and what it remembers before and behind them.
struct Sequence {
    const f32* columns; // [rows, columns] of the first product
    const f32* before;  // [taps - 1, channels], [heads, state_rows, state_cols]; null: zeros
    f32* after;         // the same
    f32* output;        // [rows, outputs]
};

// Sequences of equally many rows; what follows from another is a token, `sequences` times `rows`
// of them.
struct Recurrence {
    Sequence one;
    const Sequence* many; // [sequences]; null where `one` is all
    f32* convolved;       // [tokens, width_of]: q and k of every group, v of every head, padded
    f32* steps;           // [tokens, heads, 4]: decay and step, and nothing
    f32* walked;          // [tokens, heads, state_cols]: what is read of states
    const f32* taps_of;   // [taps, channels]
    const f32* bias;      // [channels], or null
    const f32* rate;      // [heads]
    const f32* shift;     // [heads]
    const f32* skip;      // [heads], of SCAN
    const f32* norm;      // DELTA: [state_cols]; SCAN: [outputs], or null
    u32* broken;          // or null
    u32 rule;             // GATED, DELTA, SCAN
    u32 sequences, rows;
    u32 tile;             // tokens that are copied together
    u32 taps, channels;
    u32 columns, outputs; // of a row
    u32 inputs, z, gates; // where a row has what is convolved, z, and b and a or dt
    u32 heads, groups;    // heads that share q and k follow each other,
    u32 state_rows, state_cols;
    u32 padded_rows, padded_cols; // the same in `convolved`; zeros beyond
    u32 q, k, v;          // their first channels
    u32 parts;            // of a row, each normed by itself
    f32 eps;
    f32 least, most;      // SCAN: of a step; DELTA: `most` is what sigmoid is multiplied by
    f32 dt_scale, x_scale; // SCAN: of what a step is made of, and of what it lets in
    u32 code;             // what `broken` becomes
    u32 tiled;            // or they are `groups` apart
};

constexpr u32 GATED = 0;
constexpr u32 DELTA = 1;
constexpr u32 SCAN = 2;

DEVICE Sequence sequence_of(const Recurrence& p, u32 i) { return p.many ? p.many[i] : p.one; }

// Whose q and k a head takes.
DEVICE u32 group_of(const Recurrence& p, u32 head) {
    return p.tiled ? head % p.groups : head / (p.heads / p.groups);
}

DEVICE u32 width_of(const Recurrence& p) {
    return 2 * p.groups * p.padded_rows + p.heads * p.padded_cols;
}
