/* attest_kernel.h: the interface of a paged-attention kernel that `attest judge` can judge.
 *
 * A kernel is a shared library that exports attest_info, attest_paged_attention, attest_workspace_size and, if it can fill
 * a cache, attest_store. It needs nothing but this file. docs/JUDGE.md explains the contract and every finding.
 *
 * In short:
 *   - Nothing here transfers ownership. The caller owns every buffer, the kernel keeps no pointer after a call returns.
 *   - Tensors lie in host memory for a kernel of ATTEST_DEVICE_HOST, in device memory of the current context for one of
 *     ATTEST_DEVICE_CUDA. All device work goes to the given stream; when the call returns it may still be running. A host
 *     kernel has finished when it returns.
 *   - What info does not declare is refused with ATTEST_UNSUPPORTED, what makes no sense with ATTEST_INVALID_ARGUMENT and
 *     a message that names the argument. A refused call writes no tensor.
 *   - Calls come from one thread at a time.
 */
#ifndef ATTEST_KERNEL_H
#define ATTEST_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of every struct of this file. A kernel refuses a struct of another version or size. */
#define ATTEST_ABI_VERSION 1u

/* What a call returns. */
enum {
    ATTEST_OK = 0,
    /* The call makes no sense: the message names the argument. */
    ATTEST_INVALID_ARGUMENT = 1,
    /* The call makes sense, and this kernel does not serve it. */
    ATTEST_UNSUPPORTED = 2,
    /* The kernel or its device failed. */
    ATTEST_FAILED = 3
};

/* Element types. fp8 is e4m3fn (no infinity, largest value 448) or e5m2; the fnuz variants have no tag. */
enum {
    ATTEST_F32 = 1,
    ATTEST_BF16 = 2,
    ATTEST_F16 = 3,
    ATTEST_E4M3 = 4,
    ATTEST_E5M2 = 5,
    ATTEST_I32 = 6,
    ATTEST_I64 = 7
};

/* Where the tensors lie. */
enum { ATTEST_DEVICE_HOST = 1, ATTEST_DEVICE_CUDA = 2 };

/* Bits of attest_kernel_info.layouts. The logical shape of a cache is always [num_pages, page_size, num_kv_heads,
 * head_dim]: layouts differ in strides only. */
enum {
    /* Slots before heads in memory. */
    ATTEST_NHD = 1,
    /* Heads before slots. */
    ATTEST_HND = 2,
    /* K and V as two views of one tensor: a page stride of twice a page, or V behind all of K. */
    ATTEST_INTERLEAVED = 4,
    /* Strides with gaps, and a first element that is not the first of its buffer. */
    ATTEST_PADDED = 8
};

/* Bits of attest_kernel_info.options: what the kernel serves beyond full attention over a batch of any lengths. */
enum {
    ATTEST_CAN_CAUSAL = 1,
    ATTEST_CAN_WINDOW = 2,
    ATTEST_CAN_SOFTCAP = 4,
    ATTEST_CAN_ALIBI = 8,
    ATTEST_CAN_SINKS = 16,
    ATTEST_CAN_LSE = 32,
    /* k_scale and v_scale other than 1. */
    ATTEST_CAN_SCALES = 64,
    /* One scale per KV head. */
    ATTEST_CAN_HEAD_SCALES = 128,
    /* V of another head_dim than K. */
    ATTEST_CAN_UNEQUAL_DIMS = 256,
    /* Requests with more than one query row. */
    ATTEST_CAN_PREFILL = 512,
    /* Attention without the causal mask. */
    ATTEST_CAN_FULL = 1024
};

/* Bits of attest_kernel_info.promises. */
enum {
    /* A request's bits depend neither on the other requests and heads of the call, nor on the page size, nor on
     * max_query_len and max_seq_len. Without this promise such relations are held to the error bound. */
    ATTEST_BATCH_INVARIANT = 1
};

/* Bits of attest_attention_args.flags. */
enum {
    /* A row sees keys up to its own position only; the last row stands at the last key. */
    ATTEST_CAUSAL = 1,
    /* softcap counts. */
    ATTEST_SOFTCAP = 2
};

/* A strided view. Optional tensors are absent when data is NULL and rank is 0. A present tensor without elements may have
 * any data. */
typedef struct attest_tensor {
    uint32_t struct_size;
    uint32_t version;
    void *data;         /* first element */
    uint64_t bytes;     /* memory that may be touched from data on */
    uint32_t dtype;     /* ATTEST_F32 ... */
    uint32_t rank;      /* axes in use; those behind are 0 */
    int64_t shape[4];   /* outermost first */
    int64_t strides[4]; /* in elements; 1 for the last axis */
} attest_tensor;

/* What a kernel is. The caller sets struct_size and version; the kernel sets both to its own and fills in the rest. */
typedef struct attest_kernel_info {
    uint32_t struct_size;
    uint32_t version;
    const char *name;              /* static, not NULL */
    uint32_t device;               /* ATTEST_DEVICE_HOST or ATTEST_DEVICE_CUDA */
    uint32_t layouts;              /* bits */
    uint32_t options;              /* bits */
    uint32_t promises;             /* bits */
    uint32_t attention_caches[8];  /* indexed by the query's dtype: bits (1u << dtype) of the caches it is served with */
    uint32_t store_caches[8];      /* the same for attest_store, indexed by the dtype of the new rows */
    int64_t head_dim_step;         /* head dims are multiples of this, from 1 ... */
    int64_t head_dim_max;          /* ... up to this, or exactly those of head_dims if there are any */
    int64_t head_dims[16];         /* 0 behind the last */
    int64_t page_sizes[16];        /* 0 behind the last; none: any page size */
    int64_t cache_alignment;       /* bytes of which the address of every cache row must be a multiple; 1: any */
    int64_t max_group;             /* most query heads per KV head; 0: any */
} attest_kernel_info;

/* One call of paged attention over a batch of requests of any lengths.
 *
 * Query row i of a request of q_len rows and kv_len keys stands at position p = kv_len - q_len + i. It sees key j if
 * 0 <= j < kv_len, j <= p if causal, j >= p - window_left and j <= p + window_right. With c the stored codes:
 *   s_j = softmax_scale * k_scale * (q . ck_j);  softcap: s_j = softcap * tanh(s_j / softcap);  alibi: s_j += slope * (j - p)
 *   out = v_scale * sum_j w_j cv_j, w = softmax(s); a sink adds exp(sink) to the denominator.  lse = ln of the denominator.
 * A row that sees no key gives 0 and an lse of -inf (the sink, if there is one). Query head h reads KV head
 * h / (num_q_heads / num_kv_heads). Bytes that no request owns may hold anything, NaN included, and must not matter. */
typedef struct attest_attention_args {
    uint32_t struct_size;
    uint32_t version;
    attest_tensor q;               /* [total_q, num_q_heads, head_dim] */
    attest_tensor k_cache;         /* [num_pages, page_size, num_kv_heads, head_dim] */
    attest_tensor v_cache;         /* [num_pages, page_size, num_kv_heads, head_dim_v], of k_cache's dtype */
    attest_tensor out;             /* [total_q, num_q_heads, head_dim_v], of q's dtype */
    attest_tensor lse;             /* f32 [total_q, num_q_heads]; optional */
    attest_tensor block_table;     /* i32 [num_requests, width]: pages of each request; entries behind them are arbitrary */
    attest_tensor seq_lens;        /* i32 [num_requests]: keys of each request */
    attest_tensor query_start_loc; /* i32 [num_requests + 1]: first query row of each request, then total_q */
    attest_tensor k_scales;        /* f32 [num_kv_heads]; optional, in place of k_scale */
    attest_tensor v_scales;        /* f32 [num_kv_heads]; optional, in place of v_scale */
    attest_tensor alibi_slopes;    /* f32 [num_q_heads]; optional */
    attest_tensor sinks;           /* f32 [num_q_heads]; optional */
    /* Copies in host memory of the tensors of the same name, row-major, or NULL. Where they are given, values that make no
     * sense (a page outside the cache, a negative length, falling query starts) must be refused. */
    const int32_t *host_block_table;
    const int32_t *host_seq_lens;
    const int32_t *host_query_start_loc;
    int64_t max_query_len;         /* at least the longest query */
    int64_t max_seq_len;           /* at least the longest sequence */
    int64_t window_left;           /* keys visible before the row's own position; -1: all */
    int64_t window_right;          /* keys visible behind it; -1: all */
    float softmax_scale;           /* finite, above 0; without k_scale */
    float softcap;                 /* finite, above 0, where ATTEST_SOFTCAP is set */
    float k_scale;                 /* finite, above 0: a key is code * k_scale */
    float v_scale;
    uint32_t flags;                /* ATTEST_CAUSAL, ATTEST_SOFTCAP */
    uint32_t num_splits;           /* 0: the kernel's choice; else split the keys so often, or ignore this always */
    void *workspace;               /* at least as many bytes as attest_workspace_size said, aligned to 256, arbitrary content */
    uint64_t workspace_bytes;
    void *stream;                  /* CUstream (cudaStream_t); NULL for a host kernel */
    char *error;                   /* place for a message, NUL-terminated; touched only by a call that fails */
    uint64_t error_bytes;
} attest_attention_args;

/* Writes new rows into the cache: code = encode(x / scale), by IEEE division, rounded to nearest even, saturating at the
 * largest finite value for fp8, NaN kept with its sign. */
typedef struct attest_store_args {
    uint32_t struct_size;
    uint32_t version;
    attest_tensor k;               /* [num_tokens, num_kv_heads, head_dim] */
    attest_tensor v;               /* [num_tokens, num_kv_heads, head_dim_v] */
    attest_tensor k_cache;         /* [num_pages, page_size, num_kv_heads, head_dim] */
    attest_tensor v_cache;         /* [num_pages, page_size, num_kv_heads, head_dim_v] */
    attest_tensor slot_mapping;    /* i64 [num_tokens]: page * page_size + slot; -1: this row is not stored */
    attest_tensor k_scales;        /* f32 [num_kv_heads]; optional */
    attest_tensor v_scales;        /* f32 [num_kv_heads]; optional */
    const int64_t *host_slot_mapping; /* copy in host memory, or NULL; slots out of range or used twice must be refused */
    float k_scale;                 /* 1 for a cache that is not fp8 */
    float v_scale;
    void *stream;
    char *error;
    uint64_t error_bytes;
} attest_store_args;

#if defined(_WIN32)
#define ATTEST_EXPORT __declspec(dllexport)
#else
#define ATTEST_EXPORT __attribute__((visibility("default")))
#endif

/* Says what the kernel is and serves. Always the same answer. */
ATTEST_EXPORT int32_t attest_info(attest_kernel_info *info);
/* Bytes of workspace that a call needs; 0 is fine. Reads no tensor, only the description of the call. */
ATTEST_EXPORT int32_t attest_workspace_size(const attest_attention_args *args, uint64_t *bytes);
ATTEST_EXPORT int32_t attest_paged_attention(const attest_attention_args *args);
/* May be absent if store_caches is all 0. */
ATTEST_EXPORT int32_t attest_store(const attest_store_args *args);

#ifdef __cplusplus
}
#endif

#endif
