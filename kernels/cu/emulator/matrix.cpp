// The matrix instructions of sm_80, fragments as PTX's manual lays them out.
#include "runtime.hpp"

namespace emulator {
namespace {

constexpr u32 ROWS = 16, COLUMNS = 8;

// Row r of matrix m is at the address that lane 8 m + r gave.
void load(void* const* lanes, bool transposed) {
    u16 matrices[4][8][8];
    for (u32 i = 0; i < LANES; i++) {
        const void* row = ((RowLoad*)lanes[i])->row;
        check_shared("a row that ldmatrix reads", row, 16, 16);
        memcpy(matrices[i / 8][i % 8], row, 16);
    }
    for (u32 i = 0; i < LANES; i++) {
        u32* to = ((RowLoad*)lanes[i])->to;
        for (u32 m = 0; m < 4; m++) {
            u32 row = i / 4, column = i % 4 * 2;
            u16 low = transposed ? matrices[m][column][row] : matrices[m][row][column];
            u16 high = transposed ? matrices[m][column + 1][row] : matrices[m][row][column + 1];
            to[m] = (u32)high << 16 | low;
        }
    }
}

// c += a b over fragments whose registers hold PACKED elements of E each: K is 8 PACKED.
template <typename E, typename C, u32 PACKED, C WIDEN(E)>
void product(void* const* lanes) {
    constexpr u32 K = 8 * PACKED;
    C a[ROWS][K], b[K][COLUMNS], c[ROWS][COLUMNS];
    for (u32 i = 0; i < LANES; i++) {
        const Product& mine = *(Product*)lanes[i];
        u32 group = i / 4, within = i % 4;
        for (u32 r = 0; r < 4; r++) {
            E elements[PACKED];
            memcpy(elements, &mine.a[r], 4);
            for (u32 e = 0; e < PACKED; e++) {
                a[group + r % 2 * 8][r / 2 * K / 2 + within * PACKED + e] = WIDEN(elements[e]);
            }
        }
        for (u32 r = 0; r < 2; r++) {
            E elements[PACKED];
            memcpy(elements, &mine.b[r], 4);
            for (u32 e = 0; e < PACKED; e++) {
                b[r * K / 2 + within * PACKED + e][group] = WIDEN(elements[e]);
            }
        }
        for (u32 r = 0; r < 4; r++) c[group + r / 2 * 8][within * 2 + r % 2] = ((C*)mine.c)[r];
    }
    for (u32 row = 0; row < ROWS; row++) {
        for (u32 k = 0; k < K; k++) {
            for (u32 n = 0; n < COLUMNS; n++) c[row][n] += a[row][k] * b[k][n];
        }
    }
    for (u32 i = 0; i < LANES; i++) {
        C* to = (C*)((Product*)lanes[i])->c;
        for (u32 r = 0; r < 4; r++) to[r] = c[i / 4 + r / 2 * 8][i % 4 * 2 + r % 2];
    }
}

f32 from_bf16(u16 x) { return widen(x); }
i32 from_int8(i8 x) { return x; }

} // namespace

const Together LOAD_ROWS = {"ldmatrix4", [](void* const* lanes) { load(lanes, false); }};
const Together LOAD_COLUMNS = {"ldmatrix4_transposed",
                               [](void* const* lanes) { load(lanes, true); }};
const Together PRODUCT_BF16 = {"mma_bf16", product<u16, f32, 2, from_bf16>};
const Together PRODUCT_INT8 = {"mma_int8", product<i8, i32, 4, from_int8>};

} // namespace emulator
