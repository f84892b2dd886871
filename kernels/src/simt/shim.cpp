// Linked into every kernel library: forwards the kernel's calls, and the compiler's access hooks, to the runtime.
//
// Compiled without instrumentation. The runtime's functions arrive as a table at load time, so that the library
// has no undefined symbols and link errors mean what they say.

typedef __UINTPTR_TYPE__ uintptr;
typedef unsigned long long u64;
typedef __SIZE_TYPE__ size_t;

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))

namespace {

struct Index {
  unsigned axis[3];
};

// The part of a block that the kernel sees; mirrored by `Block` in block.rs.
struct Block {
  Index geometry[3];  // block index, block size, grid size
  unsigned active;
  unsigned char* shared;
};

// The part of a lane that the kernel sees; mirrored by `Lane` in abi.rs.
struct Lane {
  Index thread;
  unsigned linear;
  Block* block;
};

// Mirrored by `Table` in abi.rs.
struct Table {
  uintptr stack_base, stack_bytes, stack_shift, lanes, lane_shift;
  void (*read[5])(Lane*, const void*, uintptr);
  void (*write[5])(Lane*, const void*, uintptr);
  void (*range)(Lane*, const void*, u64, unsigned write, uintptr);
  void (*barrier)(Lane*, int line, uintptr);
  void (*sync_warp)(Lane*, unsigned, uintptr);
  u64 (*shuffle)(Lane*, unsigned, u64, int, int, int, uintptr);
  unsigned (*vote)(Lane*, unsigned, int, int, uintptr);
  unsigned (*active_mask)(Lane*);
  unsigned (*atomic32)(Lane*, int, int, void*, unsigned, unsigned, uintptr);
  u64 (*atomic64)(Lane*, int, int, void*, u64, u64, uintptr);
  void (*atomic_check)(Lane*, const void*, unsigned, uintptr);
  void (*beyond_array)(Lane*, uintptr index, const char* array, uintptr);
  void (*cp_async)(Lane*, void*, const void*, int, int, uintptr);
  void (*cp_commit)(Lane*);
  void (*cp_wait)(Lane*, int, uintptr);
  void (*mma)(Lane*, float*, const unsigned*, const unsigned*, const float*, int, uintptr);
  void (*ldmatrix)(Lane*, unsigned*, const void*, int, int, uintptr);
  float (*ex2)(float);
};

Table table;

inline __attribute__((always_inline)) bool on_stack(const void* address) {
  return reinterpret_cast<uintptr>(address) - table.stack_base < table.stack_bytes;
}

#define HERE reinterpret_cast<uintptr>(__builtin_frame_address(0))
#define LANE reinterpret_cast<Lane*>(table.lanes + (((HERE - table.stack_base) >> table.stack_shift) << table.lane_shift))
#define PC reinterpret_cast<uintptr>(__builtin_return_address(0))

}  // namespace

extern "C" {

EXPORT u64 attest_simt_attach(const void* from, u64 bytes) {
  if (bytes == sizeof(Table)) __builtin_memcpy(&table, from, sizeof(Table));
  return sizeof(Table);
}

// ---- builtins of the prelude ----

HIDDEN unsigned simt_index(int which) {
  Lane* lane = LANE;
  return which < 3 ? lane->thread.axis[which] : lane->block->geometry[which / 3 - 1].axis[which % 3];
}
HIDDEN unsigned char* simt_shared_base() { return LANE->block->shared; }
HIDDEN void simt_syncthreads(int line) { table.barrier(LANE, line, PC); }
HIDDEN void simt_syncwarp(unsigned mask) { table.sync_warp(LANE, mask, PC); }
HIDDEN u64 simt_shuffle(unsigned mask, u64 value, int operand, int width, int kind) {
  return table.shuffle(LANE, mask, value, operand, width, kind, PC);
}
HIDDEN unsigned simt_vote(unsigned mask, int predicate, int kind) {
  return table.vote(LANE, mask, predicate, kind, PC);
}
HIDDEN unsigned simt_active_mask() { return table.active_mask(LANE); }
HIDDEN unsigned simt_atomic32(int op, int type, void* address, unsigned value, unsigned compare) {
  return table.atomic32(LANE, op, type, address, value, compare, PC);
}
HIDDEN u64 simt_atomic64(int op, int type, void* address, u64 value, u64 compare) {
  return table.atomic64(LANE, op, type, address, value, compare, PC);
}
HIDDEN void simt_threadfence() {}
HIDDEN void simt_cp_async(void* dst, const void* src, int bytes, int src_bytes) {
  table.cp_async(LANE, dst, src, bytes, src_bytes, PC);
}
HIDDEN void simt_cp_async_commit() { table.cp_commit(LANE); }
HIDDEN void simt_cp_async_wait(int pending) { table.cp_wait(LANE, pending, PC); }
HIDDEN void simt_mma_m16n8k16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4], int is_f16) {
  table.mma(LANE, d, a, b, c, is_f16, PC);
}
HIDDEN void simt_ldmatrix_x4(unsigned* r, const void* row, int trans) { table.ldmatrix(LANE, r, row, 4, trans, PC); }
HIDDEN void simt_ldmatrix_x2(unsigned* r, const void* row, int trans) { table.ldmatrix(LANE, r, row, 2, trans, PC); }
HIDDEN float simt_ex2_approx_ftz(float x) { return table.ex2(x); }

HIDDEN void* simt_memcpy(void* dst, const void* src, size_t bytes);
HIDDEN void* simt_memset(void* dst, int value, size_t bytes);

#ifdef ATTEST_CHECKED
#define CHECK(address, bytes, is_write) \
  if (!on_stack(address)) table.range(LANE, address, bytes, is_write, PC)
#else
#define CHECK(address, bytes, is_write) (void)0
#endif

// Byte loops: a call to memcpy here would come back to itself.
#define COPY_LOOP                                                \
  unsigned char* to = static_cast<unsigned char*>(dst);          \
  const unsigned char* from = static_cast<const unsigned char*>(src); \
  for (size_t i = 0; i < bytes; ++i) to[i] = from[i];            \
  return dst
HIDDEN void* simt_memcpy(void* dst, const void* src, size_t bytes) {
  CHECK(src, bytes, 0u);
  CHECK(dst, bytes, 1u);
  COPY_LOOP;
}
HIDDEN void* simt_memset(void* dst, int value, size_t bytes) {
  CHECK(dst, bytes, 1u);
  unsigned char* to = static_cast<unsigned char*>(dst);
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<unsigned char>(value);
  return dst;
}

#ifdef ATTEST_CHECKED

// Calls that the compiler itself makes for struct copies and array initialisers.
HIDDEN void* memcpy(void* dst, const void* src, size_t bytes) {
  CHECK(src, bytes, 0u);
  CHECK(dst, bytes, 1u);
  COPY_LOOP;
}
HIDDEN void* memmove(void* dst, const void* src, size_t bytes) {
  CHECK(src, bytes, 0u);
  CHECK(dst, bytes, 1u);
  unsigned char* to = static_cast<unsigned char*>(dst);
  const unsigned char* from = static_cast<const unsigned char*>(src);
  if (to <= from) {
    for (size_t i = 0; i < bytes; ++i) to[i] = from[i];
  } else {
    for (size_t i = bytes; i > 0; --i) to[i - 1] = from[i - 1];
  }
  return dst;
}
HIDDEN void* memset(void* dst, int value, size_t bytes) {
  CHECK(dst, bytes, 1u);
  unsigned char* to = static_cast<unsigned char*>(dst);
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<unsigned char>(value);
  return dst;
}

// ---- access hooks of -fsanitize=thread ----

HIDDEN void __tsan_init() {}
HIDDEN void __tsan_func_entry(void*) {}
HIDDEN void __tsan_func_exit() {}
HIDDEN void __tsan_vptr_update(void**, void*) {}
HIDDEN void __tsan_vptr_read(void**) {}

#define HOOK(bytes, slot)                                                                    \
  HIDDEN void __tsan_read##bytes(void* p) {                                                  \
    if (!on_stack(p)) table.read[slot](LANE, p, PC);                                         \
  }                                                                                          \
  HIDDEN void __tsan_write##bytes(void* p) {                                                 \
    if (!on_stack(p)) table.write[slot](LANE, p, PC);                                        \
  }                                                                                          \
  HIDDEN void __tsan_volatile_read##bytes(void* p) {                                         \
    if (!on_stack(p)) table.read[slot](LANE, p, PC);                                         \
  }                                                                                          \
  HIDDEN void __tsan_volatile_write##bytes(void* p) {                                        \
    if (!on_stack(p)) table.write[slot](LANE, p, PC);                                        \
  }                                                                                          \
  HIDDEN void __tsan_unaligned_read##bytes(void* p) { CHECK(p, bytes, 0u); }                 \
  HIDDEN void __tsan_unaligned_write##bytes(void* p) { CHECK(p, bytes, 1u); }
HOOK(1, 0)
HOOK(2, 1)
HOOK(4, 2)
HOOK(8, 3)
HOOK(16, 4)

HIDDEN void __tsan_read_range(void* p, size_t bytes) { CHECK(p, bytes, 0u); }
HIDDEN void __tsan_write_range(void* p, size_t bytes) { CHECK(p, bytes, 1u); }

// Atomic hooks stand in for the operation, so they perform it. Lanes of a launch run on one thread: a plain
// read-modify-write is atomic here.
#define ATOMIC_CHECK(p, bytes) \
  if (!on_stack(const_cast<const void*>(static_cast<const volatile void*>(p)))) \
    table.atomic_check(LANE, const_cast<const void*>(static_cast<const volatile void*>(p)), bytes, PC)
#define ATOMIC_RMW(bits, type, name, expression)                                 \
  HIDDEN type __tsan_atomic##bits##_##name(volatile type* p, type v, int) {      \
    ATOMIC_CHECK(p, bits / 8);                                                   \
    type old = *p;                                                               \
    *p = static_cast<type>(expression);                                          \
    return old;                                                                  \
  }
#define ATOMICS(bits, type)                                                                                  \
  HIDDEN type __tsan_atomic##bits##_load(const volatile type* p, int) {                                      \
    ATOMIC_CHECK(p, bits / 8);                                                                               \
    return *p;                                                                                               \
  }                                                                                                          \
  HIDDEN void __tsan_atomic##bits##_store(volatile type* p, type v, int) {                                   \
    ATOMIC_CHECK(p, bits / 8);                                                                               \
    *p = v;                                                                                                  \
  }                                                                                                          \
  ATOMIC_RMW(bits, type, exchange, v)                                                                        \
  ATOMIC_RMW(bits, type, fetch_add, old + v)                                                                 \
  ATOMIC_RMW(bits, type, fetch_sub, old - v)                                                                 \
  ATOMIC_RMW(bits, type, fetch_and, old & v)                                                                 \
  ATOMIC_RMW(bits, type, fetch_or, old | v)                                                                  \
  ATOMIC_RMW(bits, type, fetch_xor, old ^ v)                                                                 \
  ATOMIC_RMW(bits, type, fetch_nand, ~(old & v))                                                             \
  HIDDEN int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* expected, type v, int, int) { \
    ATOMIC_CHECK(p, bits / 8);                                                                               \
    type old = *p;                                                                                           \
    if (old == *expected) {                                                                                  \
      *p = v;                                                                                                \
      return 1;                                                                                              \
    }                                                                                                        \
    *expected = old;                                                                                         \
    return 0;                                                                                                \
  }                                                                                                          \
  HIDDEN int __tsan_atomic##bits##_compare_exchange_weak(volatile type* p, type* expected, type v, int s, int f) { \
    return __tsan_atomic##bits##_compare_exchange_strong(p, expected, v, s, f);                              \
  }                                                                                                          \
  HIDDEN type __tsan_atomic##bits##_compare_exchange_val(volatile type* p, type expected, type v, int, int) { \
    ATOMIC_CHECK(p, bits / 8);                                                                               \
    type old = *p;                                                                                           \
    if (old == expected) *p = v;                                                                             \
    return old;                                                                                              \
  }
ATOMICS(8, unsigned char)
ATOMICS(16, unsigned short)
ATOMICS(32, unsigned)
ATOMICS(64, u64)
// ---- hook of -fsanitize=bounds: an index beyond an array of known length, such as a thread's own ----

// As the compiler lays them out; only what is read here.
struct ArrayType {
  unsigned short kind, info;
  char name[1];
};
struct BeyondArray {
  const char* file;
  unsigned line, column;
  const ArrayType* array;
  const void* index_type;
};
HIDDEN void __ubsan_handle_out_of_bounds(const BeyondArray* what, uintptr index) {
  table.beyond_array(LANE, index, what->array->name, PC);
}

HIDDEN void __tsan_atomic_thread_fence(int) {}
HIDDEN void __tsan_atomic_signal_fence(int) {}

#endif  // ATTEST_CHECKED

}  // extern "C"
