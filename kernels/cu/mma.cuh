// Matrix instructions of sm_80, which every later chip has too. All 32 lanes take part in each.
#pragma once
#include "device.cuh"

#ifndef AQUEDUCT_EMULATED

// An address in shared memory as the instructions take it.
DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void ldmatrix4(u32 (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix4_transposed(u32 (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)) : "memory");
}

// c += a b: a 16 x 16 row-major, b 16 x 8 column-major, bf16; c 16 x 8 f32.
DEVICE void mma_bf16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b: a 16 x 32 row-major, b 32 x 8 column-major, signed bytes; c 16 x 8 i32, exact.
DEVICE void mma_int8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 16 bytes from global to shared memory, by and by; zeros where `valid` is false.
DEVICE void copy_async16(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(valid ? 16 : 0) : "memory");
}
// Everything that this thread has begun to copy since the last call is one group.
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most N of this thread's groups are under way.
template <int N>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif
