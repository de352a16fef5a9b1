// Products of a warpgroup on sm_90a. Each warp has its own sixteen rows of them, so each begins
// and finishes its part by itself.
#include "runtime.hpp"

namespace emulator {
namespace {

constexpr u32 K = 16;
constexpr u32 ROWS = 16;
constexpr u32 WIDEST = 128;

// A tile as a descriptor tells.
struct Tile {
    u32 begin, leading, stride;
};

Tile tile_of(u64 descriptor) {
    auto field = [&](u32 bit) { return (u32)(descriptor >> bit & 0x3fff) << 4; };
    if (descriptor >> 62 != 1) fail("a tile without the swizzle of 128 bytes: 0x%llx", descriptor);
    if (descriptor >> 49 & 7) fail("a tile with an offset of its base: 0x%llx", descriptor);
    return Tile{field(0), field(16), field(32)};
}

// Eight elements that are neighbours, `offset` bytes behind where the tile begins.
void read8(const Tile& tile, u32 offset, f32* to, u32 step) {
    u32 place = swizzled(tile.begin + offset);
    check_shared("a tile", self->shared + place, 16, 16);
    engine_reads(place, 16);
    u16 elements[8];
    memcpy(elements, self->shared + place, 16);
    for (u32 i = 0; i < 8; i++) to[i * step] = widen(elements[i]);
}

// Rows of K elements, `row` being one of them.
u32 row_offset(const Tile& tile, u32 row) { return row / 8 * tile.stride + row % 8 * 128; }

void read_a(const PendingProduct& product, u32 warp, f32 (&a)[ROWS][K]) {
    if (!product.from_registers) {
        Tile tile = tile_of(product.a_tile);
        for (u32 row = 0; row < ROWS; row++) {
            for (u32 k = 0; k < K; k += 8) {
                read8(tile, row_offset(tile, warp % 4 * ROWS + row) + k * 2, &a[row][k], 1);
            }
        }
        return;
    }
    for (u32 i = 0; i < LANES; i++) {
        for (u32 r = 0; r < 4; r++) {
            u32 row = i / 4 + r % 2 * 8, k = r / 2 * 8 + i % 4 * 2;
            a[row][k] = widen((u16)product.a[i][r]);
            a[row][k + 1] = widen((u16)(product.a[i][r] >> 16));
        }
    }
}

void read_b(const PendingProduct& product, u32 columns, f32 (&b)[K][2 * WIDEST]) {
    Tile tile = tile_of(product.b_tile);
    if (product.transposed) {
        for (u32 k = 0; k < K; k++) {
            for (u32 n = 0; n < columns; n += 8) {
                u32 block_of_64 = n / 64 * tile.leading;
                read8(tile, block_of_64 + row_offset(tile, k) + n % 64 * 2, &b[k][n], 1);
            }
        }
        return;
    }
    for (u32 n = 0; n < columns; n++) {
        for (u32 k = 0; k < K; k += 8) {
            read8(tile, row_offset(tile, n) + k * 2, &b[k][n], 2 * WIDEST);
        }
    }
}

// Element i of a lane's sums: its row and column.
u32 row_of(u32 lane, u32 i) { return lane / 4 + i / 2 % 2 * 8; }
u32 column_of(u32 lane, u32 i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

void compute(PendingProduct& product, u32 warp) {
    Sums& sums = *product.sums;
    u32 columns = 2 * sums.width;
    f32 a[ROWS][K], b[K][2 * WIDEST];
    read_a(product, warp, a);
    read_b(product, columns, b);
    if (!product.keep) sums.values.assign(ROWS * columns, 0.0f);
    for (u32 row = 0; row < ROWS; row++) {
        f32* c = &sums.values[row * columns];
        for (u32 k = 0; k < K; k++) {
            for (u32 n = 0; n < columns; n++) c[n] += a[row][k] * b[k][n];
        }
    }
    if (--sums.under_way > 0) return;
    for (u32 lane = 0; lane < LANES; lane++) {
        for (u32 i = 0; i < sums.width; i++) {
            sums.at[lane][i] = sums.values[row_of(lane, i) * columns + column_of(lane, i)];
        }
    }
}

// Takes the sums out of the registers, which nobody may look at until they are waited for.
std::shared_ptr<Sums> sums_of(Warp& warp, const GroupProduct& first) {
    for (auto& group : warp.products) {
        for (auto& other : group) {
            if (other.sums->at[0] == first.c && other.sums->under_way > 0) return other.sums;
        }
    }
    auto sums = std::make_shared<Sums>();
    sums->width = first.width;
    sums->under_way = 0;
    sums->values.resize(ROWS * 2 * first.width);
    for (u32 lane = 0; lane < LANES; lane++) {
        f32* c = ((GroupProduct*)warp.mine[lane])->c;
        sums->at[lane] = c;
        for (u32 i = 0; i < first.width; i++) {
            sums->values[row_of(lane, i) * 2 * first.width + column_of(lane, i)] = c[i];
            c[i] = __builtin_nanf("");
        }
    }
    return sums;
}

Warp& warp_of_self() { return running->warps[self->index / LANES]; }

void begin(void* const* lanes) {
    Warp& warp = warp_of_self();
    const GroupProduct& first = *(GroupProduct*)lanes[0];
    if (!warp.fenced) fail("no wgmma_fence came before this wgmma, since the last wait");
    PendingProduct product{};
    product.from_registers = first.a_registers != nullptr;
    product.a_tile = first.a_tile;
    product.b_tile = first.b_tile;
    product.transposed = first.transposed;
    product.keep = first.keep;
    for (u32 lane = 0; lane < LANES; lane++) {
        const GroupProduct& mine = *(GroupProduct*)lanes[lane];
        if (mine.a_tile != first.a_tile || mine.b_tile != first.b_tile || mine.keep != first.keep) {
            fail("lanes of one warp give wgmma different tiles");
        }
        if (mine.a_registers) memcpy(product.a[lane], mine.a_registers, sizeof(product.a[lane]));
    }
    product.sums = sums_of(warp, first);
    product.sums->under_way++;
    warp.products_begun++;
    if (warp.products.empty()) warp.products.emplace_back();
    warp.products.back().push_back(product);
    if (!running->eager) return;
    compute(warp.products.back().back(), self->index / LANES);
    warp.products.back().pop_back();
}

void finish(void* const* lanes) {
    Warp& warp = warp_of_self();
    u32 under_way = *(u32*)lanes[0];
    // The last group is the one that is still open.
    while (warp.products.size() > under_way + 1) {
        for (PendingProduct& product : warp.products.front()) {
            compute(product, self->index / LANES);
        }
        warp.products.pop_front();
    }
    warp.fenced = false;
}

} // namespace

const Together PRODUCT_BEGIN = {"wgmma", begin};
const Together PRODUCTS_FENCE = {"wgmma_fence",
                                 [](void* const*) { warp_of_self().fenced = true; }};
const Together PRODUCTS_CLOSE = {"wgmma_commit", [](void* const*) {
    Warp& warp = warp_of_self();
    if (warp.products.empty()) warp.products.emplace_back();
    warp.products.emplace_back();
}};
const Together PRODUCTS_FINISH = {"wgmma_wait", finish};

} // namespace emulator
