// The machine as the kernels see it: integer names, wide accesses, asynchronous copies, matrix instructions and the
// shape of a kernel entry. One interface, two implementations: inline PTX on a GPU (no toolkit header is included, so
// NVRTC needs no include path), and the runtime of the host device when ATTEST_SIMT is defined.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "integer names state their width");

#define ATTEST_DEVICE static __device__ __forceinline__

// A function of its arguments alone that is long and used often: inlined on a GPU, where a call costs registers, and
// called on the host, where compile time counts.
#ifdef ATTEST_SIMT
#define ATTEST_PURE __attribute__((const, noinline, unused)) static
#else
#define ATTEST_PURE static __device__ __forceinline__
#endif

// Makes a GPU's compiler hold a value that it would otherwise compute anew at each use. Not for addresses of shared memory:
// where they point would be forgotten.
#ifdef ATTEST_SIMT
#define ATTEST_KEEP(value)
#define ATTEST_KEEP_ADDRESS(value)
#else
#define ATTEST_KEEP(value) asm volatile("" : "+r"(value))
#define ATTEST_KEEP_ADDRESS(value) asm volatile("" : "+l"(value))
#endif

// Register arrays need their loops unrolled on a GPU. On the host they are plain memory that no access hook sees, and
// short code compiles in half the time.
#ifdef ATTEST_SIMT
#define ATTEST_UNROLL(count)
#define ATTEST_UNROLL_FULL
#else
#define ATTEST_PRAGMA(text) _Pragma(#text)
#define ATTEST_UNROLL(count) ATTEST_PRAGMA(unroll count)
#define ATTEST_UNROLL_FULL _Pragma("unroll")
#endif

// ---------------------------------------------------------------------------------------------------------------
// Kernel entries and dynamic shared memory
// ---------------------------------------------------------------------------------------------------------------

// Defines the entry `name`. The braces that follow are its body, which sees the one argument as `const Params& p`. The
// launch bounds are the largest block in threads and, optionally, the number of such blocks a multiprocessor should
// hold. On the host the entry takes the address of the parameter bytes and is called once per lane.
#define ATTEST_FIRST(first, ...) first
#ifdef ATTEST_SIMT
#define ATTEST_KERNEL(name, Params, ...)                                                                           \
    static void __attribute__((noinline)) name##_body(const Params& p);                                            \
    extern "C" const unsigned name##_params_bytes = sizeof(Params);                                                \
    extern "C" const unsigned name##_max_threads = ATTEST_FIRST(__VA_ARGS__, );                                    \
    extern "C" void __attribute__((no_sanitize("thread"))) name(const void* raw) {                                 \
        const Params copy = *static_cast<const Params*>(raw);                                                      \
        name##_body(copy);                                                                                         \
    }                                                                                                              \
    static void name##_body(const Params& p)
#else
#define ATTEST_KERNEL(name, Params, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Params p)
#endif

// Names the block's dynamic shared memory as bytes, 16-byte aligned.
#ifdef ATTEST_SIMT
#define ATTEST_SHARED(name) unsigned char* name = simt_shared_base()
#else
#define ATTEST_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

// ---------------------------------------------------------------------------------------------------------------
// Accesses wider than an element
// ---------------------------------------------------------------------------------------------------------------

// Sixteen bytes moved by one access. On the host it is a compiler vector, so that the access stays one access and its
// alignment is checked as such; a struct would be read field by field.
#ifdef ATTEST_SIMT
typedef u32 Vec16 __attribute__((vector_size(16), may_alias));
typedef u64 Word8 __attribute__((may_alias));
typedef u32 Word4 __attribute__((may_alias));
typedef u16 Word2 __attribute__((may_alias));
typedef float Real4 __attribute__((may_alias));
#define ATTEST_VEC16_WORD(vector, i) ((vector)[i])
#else
struct __align__(16) Vec16 {
    u32 word[4];
};
typedef u64 Word8;
typedef u32 Word4;
typedef u16 Word2;
typedef float Real4;
#define ATTEST_VEC16_WORD(vector, i) ((vector).word[i])
#endif

ATTEST_DEVICE Vec16 load16(const void* address) {
#ifdef ATTEST_SIMT
    return *static_cast<const Vec16*>(address);
#else
    const uint4 words = *static_cast<const uint4*>(address);
    return Vec16{{words.x, words.y, words.z, words.w}};
#endif
}

ATTEST_DEVICE void store16(void* address, Vec16 value) {
#ifdef ATTEST_SIMT
    *static_cast<Vec16*>(address) = value;
#else
    *static_cast<uint4*>(address) = make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]);
#endif
}

ATTEST_DEVICE Vec16 make_vec16(u32 a, u32 b, u32 c, u32 d) {
#ifdef ATTEST_SIMT
    return Vec16{a, b, c, d};
#else
    return Vec16{{a, b, c, d}};
#endif
}

ATTEST_DEVICE u64 load8(const void* address) { return *static_cast<const Word8*>(address); }
ATTEST_DEVICE u32 load4(const void* address) { return *static_cast<const Word4*>(address); }
ATTEST_DEVICE u16 load2(const void* address) { return *static_cast<const Word2*>(address); }
ATTEST_DEVICE void store8(void* address, u64 value) { *static_cast<Word8*>(address) = value; }
ATTEST_DEVICE void store4(void* address, u32 value) { *static_cast<Word4*>(address) = value; }
ATTEST_DEVICE void store2(void* address, u16 value) { *static_cast<Word2*>(address) = value; }
ATTEST_DEVICE float load_f32(const void* address) { return *static_cast<const Real4*>(address); }
ATTEST_DEVICE void store_f32(void* address, float value) { *static_cast<Real4*>(address) = value; }

// Copies `bytes` bytes (1, 2, 4, 8 or 16) by one load and one store of that width; both addresses are multiples of it.
ATTEST_DEVICE void copy_bytes(void* to, const void* from, int bytes) {
    switch (bytes) {
        case 16: store16(to, load16(from)); break;
        case 8: store8(to, load8(from)); break;
        case 4: store4(to, load4(from)); break;
        case 2: store2(to, load2(from)); break;
        default: *static_cast<u8*>(to) = *static_cast<const u8*>(from); break;
    }
}

// The value itself, in a way that keeps the compiler from computing what follows from it ahead of this place.
ATTEST_DEVICE int recomputed(int value) {
#ifndef ATTEST_SIMT
    asm volatile("" : "+r"(value));
#endif
    return value;
}

// The block's barrier, for warps that reach it at different places: it counts arrivals, whatever the code around them.
ATTEST_DEVICE void sync_block() { __syncthreads(); }

// ---------------------------------------------------------------------------------------------------------------
// Asynchronous copies, global to shared
// ---------------------------------------------------------------------------------------------------------------

#ifndef ATTEST_SIMT
ATTEST_DEVICE u32 shared_address(const void* shared) {
    return static_cast<u32>(__cvta_generic_to_shared(shared));
}
#endif

// Sixteen bytes; only the first `source_bytes` (0 to 16) are read, the rest of the destination becomes zero.
ATTEST_DEVICE void copy_async16(void* shared, const void* global, int source_bytes) {
#ifdef ATTEST_SIMT
    simt_cp_async(shared, global, 16, source_bytes);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
                 "r"(source_bytes)
                 : "memory");
#endif
}

// Sixteen whole bytes.
ATTEST_DEVICE void copy_async16(void* shared, const void* global) {
#ifdef ATTEST_SIMT
    simt_cp_async(shared, global, 16, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(shared)), "l"(global) : "memory");
#endif
}

// Four bytes.
ATTEST_DEVICE void copy_async4(void* shared, const void* global) {
#ifdef ATTEST_SIMT
    simt_cp_async(shared, global, 4, 4);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(shared_address(shared)), "l"(global) : "memory");
#endif
}

// Closes the group of copies that this lane has started.
ATTEST_DEVICE void copy_async_commit() {
#ifdef ATTEST_SIMT
    simt_cp_async_commit();
#else
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until at most `pending` of this lane's groups are still on their way. Other lanes' copies need a barrier too.
template <int pending>
ATTEST_DEVICE void copy_async_wait() {
#ifdef ATTEST_SIMT
    simt_cp_async_wait(pending);
#else
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// Matrix instructions (sm_80 and later)
// ---------------------------------------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements. Lane 8m + r gives the address of row r of matrix m and receives, of every
// matrix, row lane / 4, columns 2 (lane % 4) and the next; the transposing form swaps row and column.
ATTEST_DEVICE void load_matrix_x4(u32 (&fragment)[4], const void* row) {
#ifdef ATTEST_SIMT
    simt_ldmatrix_x4(fragment, row, 0);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

ATTEST_DEVICE void load_matrix_x4_transposed(u32 (&fragment)[4], const void* row) {
#ifdef ATTEST_SIMT
    simt_ldmatrix_x4(fragment, row, 1);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

// Two matrices; lanes 0 to 15 give the row addresses.
ATTEST_DEVICE void load_matrix_x2(u32 (&fragment)[2], const void* row) {
#ifdef ATTEST_SIMT
    simt_ldmatrix_x2(fragment, row, 0);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

ATTEST_DEVICE void load_matrix_x2_transposed(u32 (&fragment)[2], const void* row) {
#ifdef ATTEST_SIMT
    simt_ldmatrix_x2(fragment, row, 1);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

// The transpose of an 8x8 matrix of 16-bit elements that the warp holds: lane 4i + j has row i, columns 2j and the next,
// before and after.
ATTEST_DEVICE u32 transpose_matrix(u32 pair) {
#ifdef ATTEST_SIMT
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const u32 first = __shfl_sync(0xffffffffu, pair, column * 4 + row / 2);
    const u32 second = __shfl_sync(0xffffffffu, pair, (column + 1) * 4 + row / 2);
    return __byte_perm(first, second, row % 2 == 0 ? 0x5410 : 0x7632);
#else
    u32 transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(transposed) : "r"(pair));
    return transposed;
#endif
}

// sum += a b for a 16x16 and a 16x8 tile of bf16, accumulated in f32.
// With g = lane / 4 and t = lane % 4, element i of a is row g + 8 ((i >> 1) & 1), column 2t + (i & 1) + 8 (i >> 2); of
// b, k = 2t + (i & 1) + 8 (i >> 1), n = g; of the sum, row g + 8 (i >> 1), column 2t + (i & 1). Two elements to a
// register.
ATTEST_DEVICE void mma_m16n8k16_bf16(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef ATTEST_SIMT
    simt_mma_m16n8k16(sum, a, b, sum, 0);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// The same for f16 operands.
ATTEST_DEVICE void mma_m16n8k16_f16(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef ATTEST_SIMT
    simt_mma_m16n8k16(sum, a, b, sum, 1);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// Approximate functions
// ---------------------------------------------------------------------------------------------------------------

// 2^x, relative error below 2^-22; subnormal arguments and results count as zero. The host gives the bits that the
// instruction gives on compute capability 9.0.
ATTEST_DEVICE float ex2_approx(float x) {
#ifdef ATTEST_SIMT
    return simt_ex2_approx_ftz(x);
#else
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
    return result;
#endif
}
