// What CUDA provides to a kernel, for a host compiler. Included before every kernel source with -include.
//
// Everything that involves another lane or shared state is an opaque call into the runtime (shim.cpp), so the
// compiler can neither reorder memory accesses across it nor see through it. No host headers are included: they
// would cost more compile time than the kernels themselves.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

typedef __SIZE_TYPE__ size_t;

// ---- geometry --------------------------------------------------------------------------------------------------

struct dim3 {
  unsigned x, y, z;
};

extern "C" {
// 0..2 thread, 3..5 block, 6..8 block size, 9..11 grid size; constant for the life of a lane.
unsigned simt_index(int which) __attribute__((const, nothrow));
}

#define threadIdx (dim3{simt_index(0), simt_index(1), simt_index(2)})
#define blockIdx (dim3{simt_index(3), simt_index(4), simt_index(5)})
#define blockDim (dim3{simt_index(6), simt_index(7), simt_index(8)})
#define gridDim (dim3{simt_index(9), simt_index(10), simt_index(11)})
#define warpSize 32

// ---- runtime entry points --------------------------------------------------------------------------------------

extern "C" {
unsigned char* simt_shared_base();
void simt_syncthreads(int line);
void simt_syncwarp(unsigned mask = 0xffffffffu);
// kind: 0 index, 1 xor, 2 down, 3 up
unsigned long long simt_shuffle(unsigned mask, unsigned long long value, int operand, int width, int kind);
// kind: 0 ballot, 1 any, 2 all
unsigned simt_vote(unsigned mask, int predicate, int kind);
unsigned simt_active_mask();
// op: 0 add, 1 min, 2 max, 3 exchange, 4 compare-and-swap, 5 and, 6 or, 7 xor; type: 0 int, 1 unsigned, 2 float
unsigned simt_atomic32(int op, int type, void* address, unsigned value, unsigned compare);
unsigned long long simt_atomic64(int op, int type, void* address, unsigned long long value, unsigned long long compare);
void simt_threadfence();
void simt_cp_async(void* dst_shared, const void* src, int bytes, int src_bytes);
void simt_cp_async_commit();
void simt_cp_async_wait(int pending_groups);
void simt_mma_m16n8k16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4], int is_f16);
void simt_ldmatrix_x4(unsigned* r, const void* row_address, int trans);
void simt_ldmatrix_x2(unsigned* r, const void* row_address, int trans);
// The device instruction ex2.approx.ftz.f32, bit for bit (ex2.rs).
float simt_ex2_approx_ftz(float x) __attribute__((const, nothrow));
void* simt_memcpy(void* dst, const void* src, size_t bytes);
void* simt_memset(void* dst, int value, size_t bytes);
}

// The line keeps barriers of different branches apart, which the compiler would otherwise merge into one call.
#define __syncthreads() simt_syncthreads(__LINE__)
#define __threadfence simt_threadfence
#define __threadfence_block simt_threadfence
#define __activemask simt_active_mask

#define __syncwarp simt_syncwarp

// The compiler turns constant copies of 1, 2, 4, 8 and 16 bytes into assignments, which are instrumented. Other copies
// and fills are expanded after instrumentation and would be invisible to the checker, so they go through the runtime.
static inline __attribute__((always_inline)) void* simt_copy(void* dst, const void* src, size_t bytes) {
  if (__builtin_constant_p(bytes) && bytes <= 16 && (bytes & (bytes - 1)) == 0) return __builtin_memcpy(dst, src, bytes);
  return simt_memcpy(dst, src, bytes);
}
#define memcpy(dst, src, bytes) simt_copy(dst, src, bytes)
#define __builtin_memcpy(dst, src, bytes) simt_copy(dst, src, bytes)
#define memset(dst, value, bytes) simt_memset(dst, value, bytes)
#define __builtin_memset(dst, value, bytes) simt_memset(dst, value, bytes)

// ---- bits ------------------------------------------------------------------------------------------------------

template <class To, class From>
static inline __attribute__((always_inline)) To simt_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  union {
    From from;
    To to;
  } bits;
  bits.from = from;
  return bits.to;
}

#define __float_as_uint(x) simt_bits<unsigned>(static_cast<float>(x))
#define __float_as_int(x) simt_bits<int>(static_cast<float>(x))
#define __uint_as_float(x) simt_bits<float>(static_cast<unsigned>(x))
#define __int_as_float(x) simt_bits<float>(static_cast<int>(x))
#define __double_as_longlong(x) simt_bits<long long>(static_cast<double>(x))
#define __longlong_as_double(x) simt_bits<double>(static_cast<long long>(x))

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= ((x >> i) & 1u) << (31 - i);
  return reversed;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long both = (static_cast<unsigned long long>(y) << 32) | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned code = (selector >> (4 * i)) & 15u;
    unsigned byte = static_cast<unsigned>(both >> (8 * (code & 7u))) & 255u;
    if (code & 8u) byte = (byte & 128u) ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
static inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<long long>(a) * b) >> 32); }

// ---- arithmetic ------------------------------------------------------------------------------------------------

extern "C" {
float fmaf(float, float, float);
double fma(double, double, double);
float sqrtf(float);
float fabsf(float);
float floorf(float);
float ceilf(float);
float truncf(float);
float rintf(float);
float expf(float);
float exp2f(float);
float logf(float);
float log2f(float);
float tanhf(float);
float ldexpf(float, int);
}

#define __fmaf_rn(a, b, c) __builtin_fmaf(a, b, c)
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
// A card's division gives every NaN the same bits; a host's keeps the sign and payload of an operand.
static inline float __fdiv_rn(float a, float b) {
  const float quotient = a / b;
  return quotient == quotient ? quotient : __uint_as_float(0x7fffffffu);
}
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline int __float2int_rn(float a) { return static_cast<int>(__builtin_rintf(a)); }
static inline int __float2int_rz(float a) { return static_cast<int>(a); }
static inline float __int2float_rn(int a) { return static_cast<float>(a); }
static inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }

#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)

// As the device instructions: the number wins over NaN, two NaN give the canonical one, and -0 < +0.
static inline float simt_fminf(float a, float b) {
  if (__builtin_isnan(a)) return __builtin_isnan(b) ? __uint_as_float(0x7fffffffu) : b;
  if (__builtin_isnan(b)) return a;
  if (a == b) return __uint_as_float(__float_as_uint(a) | __float_as_uint(b));
  return a < b ? a : b;
}
static inline float simt_fmaxf(float a, float b) {
  if (__builtin_isnan(a)) return __builtin_isnan(b) ? __uint_as_float(0x7fffffffu) : b;
  if (__builtin_isnan(b)) return a;
  if (a == b) return __uint_as_float(__float_as_uint(a) & __float_as_uint(b));
  return a > b ? a : b;
}
#define fminf(a, b) simt_fminf(a, b)
#define fmaxf(a, b) simt_fmaxf(a, b)

#define SIMT_MIN_MAX(type)                                                  \
  static inline type min(type a, type b) { return b < a ? b : a; }          \
  static inline type max(type a, type b) { return a < b ? b : a; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
#undef SIMT_MIN_MAX
static inline float min(float a, float b) { return simt_fminf(a, b); }
static inline float max(float a, float b) { return simt_fmaxf(a, b); }

// ---- warp collectives ------------------------------------------------------------------------------------------

template <class T>
static inline __attribute__((always_inline)) T simt_shuffle_of(unsigned mask, T value, int operand, int width, int kind) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  if constexpr (sizeof(T) == 4) {
    return simt_bits<T>(static_cast<unsigned>(simt_shuffle(mask, simt_bits<unsigned>(value), operand, width, kind)));
  } else {
    return simt_bits<T>(simt_shuffle(mask, simt_bits<unsigned long long>(value), operand, width, kind));
  }
}

template <class T>
static inline __attribute__((always_inline)) T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return simt_shuffle_of(mask, value, lane, width, 0);
}
template <class T>
static inline __attribute__((always_inline)) T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  return simt_shuffle_of(mask, value, lane_mask, width, 1);
}
template <class T>
static inline __attribute__((always_inline)) T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return simt_shuffle_of(mask, value, static_cast<int>(delta), width, 2);
}
template <class T>
static inline __attribute__((always_inline)) T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return simt_shuffle_of(mask, value, static_cast<int>(delta), width, 3);
}
#define __ballot_sync(mask, predicate) simt_vote(mask, (predicate) != 0, 0)
#define __any_sync(mask, predicate) static_cast<int>(simt_vote(mask, (predicate) != 0, 1))
#define __all_sync(mask, predicate) static_cast<int>(simt_vote(mask, (predicate) != 0, 2))

// ---- atomics ---------------------------------------------------------------------------------------------------

#define SIMT_ATOMIC32(name, op, type, kind)                                                                          \
  static inline __attribute__((always_inline)) type name(type* address, type value) {                               \
    return simt_bits<type>(simt_atomic32(op, kind, address, simt_bits<unsigned>(value), 0u));                       \
  }
#define SIMT_ATOMIC64(name, op, type, kind)                                                                          \
  static inline __attribute__((always_inline)) type name(type* address, type value) {                               \
    return simt_bits<type>(simt_atomic64(op, kind, address, simt_bits<unsigned long long>(value), 0ull));           \
  }
#define SIMT_ATOMIC_INTEGERS(name, op)        \
  SIMT_ATOMIC32(name, op, int, 0)             \
  SIMT_ATOMIC32(name, op, unsigned, 1)        \
  SIMT_ATOMIC64(name, op, unsigned long long, 1)
SIMT_ATOMIC_INTEGERS(atomicAdd, 0)
SIMT_ATOMIC_INTEGERS(atomicMin, 1)
SIMT_ATOMIC_INTEGERS(atomicMax, 2)
SIMT_ATOMIC_INTEGERS(atomicExch, 3)
SIMT_ATOMIC_INTEGERS(atomicAnd, 5)
SIMT_ATOMIC_INTEGERS(atomicOr, 6)
SIMT_ATOMIC_INTEGERS(atomicXor, 7)
SIMT_ATOMIC32(atomicAdd, 0, float, 2)
SIMT_ATOMIC32(atomicExch, 3, float, 2)
#undef SIMT_ATOMIC32
#undef SIMT_ATOMIC64
#undef SIMT_ATOMIC_INTEGERS

static inline int atomicCAS(int* address, int compare, int value) {
  return static_cast<int>(simt_atomic32(4, 0, address, static_cast<unsigned>(value), static_cast<unsigned>(compare)));
}
static inline unsigned atomicCAS(unsigned* address, unsigned compare, unsigned value) {
  return simt_atomic32(4, 1, address, value, compare);
}
static inline unsigned long long atomicCAS(unsigned long long* address, unsigned long long compare,
                                           unsigned long long value) {
  return simt_atomic64(4, 1, address, value, compare);
}

template <class T>
static inline __attribute__((always_inline)) T __ldg(const T* address) {
  return *address;
}
