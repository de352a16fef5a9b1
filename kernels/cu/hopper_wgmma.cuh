// Matrix products of a warpgroup: bf16 times bf16, added in f32. Included by hopper.cuh alone.
//
// `c` is 64 rows of N = 2 W columns: thread t of the warpgroup has rows 16 (t / 32) + t % 32 / 4
// and that plus 8; element 4 i + 2 j + k is row j of these two, column 8 i + 2 (t % 4) + k. So
// elements 8 s .. 8 s + 8 hold what wgmma_rs takes, narrowed pair by pair, as its 64 x 16 `a`.
//
// The emulator provides the same names: wgmma_ss<TRANSPOSED>, wgmma_rs<TRANSPOSED> for W = 32, 64
// and 128, wgmma_advance, wgmma_hold. It computes no later than at the wait that covers the group.
#pragma once

// The place `bytes` (a multiple of 16) behind what a descriptor says: the next 16 columns of a
// K-major tile are 32 bytes on, the next 16 rows of a tile read across 2048.
DEVICE u64 wgmma_advance(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

// Keeps arithmetic on `x` on its side of a wait: what wgmma writes is not seen by the compiler.
template <int W>
DEVICE void wgmma_hold(f32 (&x)[W]) {
#pragma unroll
    for (int i = 0; i < W; i++) asm volatile("" : "+f"(x[i])::"memory");
}

#define WGMMA_LIST_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "                  \
    "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_LIST_64 \
    WGMMA_LIST_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "                  \
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "                  \
    "%62, %63"
#define WGMMA_LIST_128 \
    WGMMA_LIST_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "                  \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, "                  \
    "%94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "               \
    "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "               \
    "%121, %122, %123, %124, %125, %126, %127"
#define WGMMA_AT_8(i)                                                                              \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]),    \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define WGMMA_AT_32(i) WGMMA_AT_8(i), WGMMA_AT_8(i + 8), WGMMA_AT_8(i + 16), WGMMA_AT_8(i + 24)
#define WGMMA_C_32 WGMMA_AT_32(0)
#define WGMMA_C_64 WGMMA_AT_32(0), WGMMA_AT_32(32)
#define WGMMA_C_128 WGMMA_C_64, WGMMA_AT_32(64), WGMMA_AT_32(96)


// wgmma_ss: a is a tile of 64 rows in shared memory, wgmma_rs: 16 rows a warp in registers.
// b is a tile of N rows (K-major), or TRANSPOSED one of 16 rows that is read across.
// Without `keep`, what c held is forgotten. %R0.. are the operands behind the W of c.
#define WGMMA(N, W, R0, R1, R2, R3, R4, R5, R6)                                                    \
    template <bool TRANSPOSED>                                                                     \
    DEVICE void wgmma_ss(f32 (&c)[W], u64 a, u64 b, bool keep) {                                   \
        asm volatile("{\n.reg .pred kept;\nsetp.ne.b32 kept, " R2 ", 0;\n"                         \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "                   \
                     "{" WGMMA_LIST_##W "}, " R0 ", " R1 ", kept, 1, 1, 0, " R3 ";\n}"             \
                     : WGMMA_C_##W                                                                 \
                     : "l"(a), "l"(b), "r"((u32)keep), "n"((int)TRANSPOSED));                      \
    }                                                                                              \
    template <bool TRANSPOSED>                                                                     \
    DEVICE void wgmma_rs(f32 (&c)[W], const u32 (&a)[4], u64 b, bool keep) {                       \
        asm volatile("{\n.reg .pred kept;\nsetp.ne.b32 kept, " R5 ", 0;\n"                         \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "                   \
                     "{" WGMMA_LIST_##W "}, {" R0 ", " R1 ", " R2 ", " R3 "}, " R4                 \
                     ", kept, 1, 1, " R6 ";\n}"                                                    \
                     : WGMMA_C_##W                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((u32)keep),         \
                       "n"((int)TRANSPOSED));                                                      \
    }

WGMMA(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
WGMMA(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
