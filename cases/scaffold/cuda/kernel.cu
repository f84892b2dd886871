/* Paged attention and store in plain CUDA: right before fast. Make it yours.
 *
 * A warp serves one query row of one head: its lanes share the head's dims, and it walks the keys that the row sees, with the
 * running maximum and sum of flash attention. No workspace is needed. */
#include "attest_check.h"

namespace {

constexpr int kLanes = 32;
constexpr int kWarps = 4;
/* Elements of a row that a lane holds. */
constexpr int kHeld = 16;
constexpr int kMaxDim = kLanes * kHeld;

__device__ float of_head(const attest_tensor &values, float otherwise, int64_t head) {
    return values.rank ? static_cast<const float *>(values.data)[head] : otherwise;
}

__device__ float warp_sum(float x) {
    for (int step = kLanes / 2; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Index of the first element of a key in a cache tensor. */
__device__ int64_t locate(const attest_tensor &cache, const int32_t *pages, int64_t key, int64_t head) {
    int64_t page_size = cache.shape[1];
    return pages[key / page_size] * cache.strides[0] + key % page_size * cache.strides[1] + head * cache.strides[2];
}

/* The request of a query row. */
__device__ int64_t request_of(const int32_t *starts, int64_t requests, int64_t row) {
    int64_t low = 0, high = requests;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (starts[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

__global__ void attention(attest_attention_args args) {
    int64_t heads = args.q.shape[1], k_dim = args.q.shape[2], v_dim = args.v_cache.shape[3];
    int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
    if (index >= args.q.shape[0] * heads) return;
    int lane = threadIdx.x % kLanes;
    int64_t row = index / heads, head = index % heads, kv_head = head / (heads / args.k_cache.shape[2]);
    const int32_t *starts = static_cast<const int32_t *>(args.query_start_loc.data);
    int64_t request = request_of(starts, args.seq_lens.shape[0], row);
    int64_t keys = static_cast<const int32_t *>(args.seq_lens.data)[request];
    int64_t position = keys - starts[request + 1] + row;
    const int32_t *pages = static_cast<const int32_t *>(args.block_table.data) + request * args.block_table.strides[0];

    int64_t first = 0, end = keys;
    if (args.flags & ATTEST_CAUSAL && position + 1 < end) end = position + 1;
    if (args.window_left >= 0 && args.window_left < position) first = position - args.window_left;
    if (args.window_right >= 0 && args.window_right < end - position - 1) end = position + args.window_right + 1;

    float q[kHeld], sums[kHeld];
    for (int i = 0; i < kHeld; i++) {
        int64_t d = i * kLanes + lane;
        q[i] = d < k_dim ? attest_load(args.q.dtype, args.q.data, row * args.q.strides[0] + head * args.q.strides[1] + d) : 0;
        sums[i] = 0;
    }
    float scale = args.softmax_scale * of_head(args.k_scales, args.k_scale, kv_head);
    float slope = of_head(args.alibi_slopes, 0, head);
    float max = of_head(args.sinks, -INFINITY, head), total = args.sinks.rank ? 1 : 0;
    for (int64_t key = first; key < end; key++) {
        int64_t at = locate(args.k_cache, pages, key, kv_head);
        float s = 0;
        for (int i = 0; i < kHeld; i++) {
            int64_t d = i * kLanes + lane;
            if (d < k_dim) s += q[i] * attest_load(args.k_cache.dtype, args.k_cache.data, at + d);
        }
        s = warp_sum(s) * scale;
        if (args.flags & ATTEST_SOFTCAP) s = args.softcap * tanhf(s / args.softcap);
        s += slope * static_cast<float>(key - position);
        /* A NaN must survive the comparison. */
        float larger = s <= max ? max : s;
        float kept = max == -INFINITY ? 0 : expf(max - larger), weight = expf(s - larger);
        total = total * kept + weight;
        max = larger;
        at = locate(args.v_cache, pages, key, kv_head);
        for (int i = 0; i < kHeld; i++) {
            int64_t d = i * kLanes + lane;
            if (d < v_dim) sums[i] = sums[i] * kept + weight * attest_load(args.v_cache.dtype, args.v_cache.data, at + d);
        }
    }
    float v_scale = of_head(args.v_scales, args.v_scale, kv_head);
    for (int i = 0; i < kHeld; i++) {
        int64_t d = i * kLanes + lane, at = row * args.out.strides[0] + head * args.out.strides[1] + d;
        if (d < v_dim) attest_save(args.out.dtype, args.out.data, at, first < end ? sums[i] / total * v_scale : 0);
    }
    if (args.lse.rank && lane == 0)
        static_cast<float *>(args.lse.data)[row * args.lse.strides[0] + head * args.lse.strides[1]] =
            total == 0 ? -INFINITY : max + logf(total);
}

/* One element of one new row for each thread. */
__global__ void store(attest_tensor rows, attest_tensor cache, attest_tensor slots, attest_tensor scales, float scale) {
    int64_t heads = rows.shape[1], dim = rows.shape[2], page_size = cache.shape[1];
    int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= slots.shape[0] * heads * dim) return;
    int64_t token = index / (heads * dim), head = index / dim % heads, d = index % dim;
    int64_t slot = static_cast<const int64_t *>(slots.data)[token];
    if (slot == -1) return;
    float x = attest_load(rows.dtype, rows.data, token * rows.strides[0] + head * rows.strides[1] + d);
    int64_t to = slot / page_size * cache.strides[0] + slot % page_size * cache.strides[1] + head * cache.strides[2] + d;
    /* The quotient of a NaN has lost its sign on a GPU. */
    attest_save(cache.dtype, cache.data, to, isnan(x) ? x : __fdiv_rn(x, of_head(scales, scale, head)));
}

/* Reports a failed launch, and takes the error with it: nothing is left for the next call to find. */
int32_t launched(attest_place place) {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? ATTEST_OK : attest_refuse(place, ATTEST_FAILED, "launch", cudaGetErrorString(error));
}

unsigned blocks(int64_t items, int64_t each) { return static_cast<unsigned>((items + each - 1) / each); }

}  // namespace

int32_t attest_info(attest_kernel_info *info) {
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    info->version = ATTEST_ABI_VERSION;
    info->name = "plain CUDA";
    info->device = ATTEST_DEVICE_CUDA;
    info->layouts = ATTEST_NHD | ATTEST_HND | ATTEST_INTERLEAVED | ATTEST_PADDED;
    info->options = ATTEST_CAN_CAUSAL | ATTEST_CAN_FULL | ATTEST_CAN_WINDOW | ATTEST_CAN_SOFTCAP | ATTEST_CAN_ALIBI |
                    ATTEST_CAN_SINKS | ATTEST_CAN_LSE | ATTEST_CAN_SCALES | ATTEST_CAN_HEAD_SCALES |
                    ATTEST_CAN_UNEQUAL_DIMS | ATTEST_CAN_PREFILL;
    info->promises = ATTEST_BATCH_INVARIANT;
    for (uint32_t dtype = ATTEST_F32; dtype <= ATTEST_F16; dtype++) {
        info->attention_caches[dtype] = ATTEST_CACHE_TYPES;
        info->store_caches[dtype] = ATTEST_CACHE_TYPES;
    }
    info->head_dim_step = 1;
    info->head_dim_max = kMaxDim;
    info->cache_alignment = 1;
    return ATTEST_OK;
}

int32_t attest_workspace_size(const attest_attention_args *args, uint64_t *bytes) {
    ATTEST_TRY(attest_check_attention(args));
    *bytes = 0;
    return ATTEST_OK;
}

int32_t attest_paged_attention(const attest_attention_args *args) {
    ATTEST_TRY(attest_check_attention(args));
    attest_place place = {args->error, args->error_bytes};
    if (args->q.shape[2] > kMaxDim || args->v_cache.shape[3] > kMaxDim)
        return attest_refuse(place, ATTEST_UNSUPPORTED, "head_dim", "is above 512");
    int64_t rows = args->q.shape[0] * args->q.shape[1];
    if (rows == 0) return ATTEST_OK;
    attention<<<blocks(rows, kWarps), kWarps * kLanes, 0, static_cast<cudaStream_t>(args->stream)>>>(*args);
    return launched(place);
}

int32_t attest_store(const attest_store_args *args) {
    ATTEST_TRY(attest_check_store(args));
    attest_place place = {args->error, args->error_bytes};
    cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
    int64_t k = args->slot_mapping.shape[0] * args->k.shape[1] * args->k.shape[2];
    int64_t v = args->slot_mapping.shape[0] * args->v.shape[1] * args->v.shape[2];
    if (k == 0 || v == 0) return ATTEST_OK;
    store<<<blocks(k, 256), 256, 0, stream>>>(args->k, args->k_cache, args->slot_mapping, args->k_scales, args->k_scale);
    store<<<blocks(v, 256), 256, 0, stream>>>(args->v, args->v_cache, args->slot_mapping, args->v_scales, args->v_scale);
    return launched(place);
}
