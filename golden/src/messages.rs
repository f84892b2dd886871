//! Every error message that a user can meet before a kernel runs.

use cases::bad_input::{self, attention_calls, store_calls};
use cases::case::Case;
use cases::foreign::in_words;
use kernels::abi::ForeignInfo;
use kernels::abi::types::{self, KernelInfo};
use kernels::tensor::DType;
use kernels::validate::{validate_attention, validate_store};

/// What each bad argument of an attention call is refused with.
#[must_use]
pub fn attention_arguments() -> String {
    let calls = attention_calls(&bad_input::attention(DType::Bf16, DType::Bf16));
    let line = |call: &bad_input::BadCall<_>| {
        let error =
            validate_attention(&call.args).map_or_else(|error| error.to_string(), |_| "ACCEPTED".to_owned());
        format!("{} {} -> {error}", call.argument, call.how)
    };
    calls.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What each bad argument of a store is refused with.
#[must_use]
pub fn store_arguments() -> String {
    let calls = store_calls(&bad_input::store(DType::F32, DType::E4m3));
    let line = |call: &bad_input::BadCall<_>| {
        let error =
            validate_store(&call.args).map_or_else(|error| error.to_string(), |_| "ACCEPTED".to_owned());
        format!("{} {} -> {error}", call.argument, call.how)
    };
    calls.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A correct line, and what each wrong word in it is answered with.
#[must_use]
pub fn case_lines() -> String {
    const GOOD: &str =
        "prefill bf16 kv=e4m3 h8/2 d64 page16 NHD causal win=5,- q=[3] kv=[9] kscale=0.5 seed=7";
    let replaced = [
        ("prefill", "attend"),
        ("bf16", "fp16"),
        ("bf16", "e4m3"),
        ("kv=e4m3", "kv=e4m3fnuz"),
        ("kv=e4m3", ""),
        ("h8/2", "h8"),
        ("h8/2", "h8/x"),
        ("h8/2", ""),
        ("d64", "d99999999"),
        ("d64", "d"),
        ("page16", "page"),
        ("page16", "page16 page16"),
        ("NHD", "NDH"),
        ("NHD", ""),
        ("NHD", "NHD pad=1,2,3"),
        ("NHD", "NHD unbind"),
        ("causal", "causal causal"),
        ("causal", "softcap=x"),
        ("causal", "sinks=x"),
        ("causal", "scale="),
        ("win=5,-", "win=5"),
        ("win=5,-", "win=a,b"),
        ("q=[3]", "q=3"),
        ("q=[3]", "q=[3,1]"),
        ("q=[3]", "q=[3x0]"),
        ("q=[3]", "q=[99999999]"),
        ("q=[3]", "slots=[3]"),
        ("kv=[9]", "kv=[9x99999]"),
        ("kv=[9]", ""),
        ("kscale=0.5", "kscale=[0.5,"),
        ("seed=7", ""),
        ("seed=7", "seed=-7"),
        ("seed=7", "seed=7 data=needles"),
        ("seed=7", "seed=7 data=real:layer1"),
        ("seed=7", "seed=7 data=real:layer0"),
        ("seed=7", "seed=7 shift=100"),
        ("seed=7", "seed=7 mag=big"),
        ("seed=7", "seed=7 paging=random"),
        ("seed=7", "seed=7 bad=q"),
        ("seed=7", "seed=7 expect=reject"),
        ("seed=7", "seed=7 expect=accept"),
    ];
    let mut lines = vec![GOOD.to_owned()];
    for (from, to) in replaced {
        let line = GOOD.replacen(from, to, 1);
        let answer = line.parse::<Case>().map_or_else(|error| error.to_string(), |_| "ACCEPTED".to_owned());
        lines.push(format!("{from} -> {to}: {answer}"));
    }
    lines.push(format!("(nothing): {}", "".parse::<Case>().expect_err("an empty line")));
    lines.join("\n")
}

/// What wrong uses of the command line are answered with.
#[must_use]
pub fn usage() -> String {
    const USES: [&[&str]; 24] = [
        &["judge-everything"],
        &["verify", "--device", "gpu"],
        &["verify", "--arm", "tensor"],
        &["verify", "--tier", "all"],
        &["verify", "--jobs", "0"],
        &["verify", "--shard", "3/2"],
        &["verify", "--budget", "soon"],
        &["verify", "--report", "csv=x"],
        &["verify", "--report", "json="],
        &["verify", "--checked", "--fast"],
        &["verify", "-q", "-v"],
        &["verify", "--timeout", "0s"],
        &["replay"],
        &["shrink"],
        &["shrink", "a line", "--steps", "many"],
        &["export", "-o", "x"],
        &["export", "a line"],
        &["export", "a line", "--tier", "smoke", "-o", "x"],
        &["check"],
        &["judge"],
        &["judge", "kernel.so", "--timeout", "0s"],
        &["replay", "--kernel", "kernel.so", "--arm", "scalar", "a line"],
        &["new-kernel", "--lang", "go", "mine"],
        &["new-kernel", "mine"],
    ];
    let mut text = String::new();
    for arguments in USES {
        let answer = cases::cli::usage_error(arguments).unwrap_or_else(|| "ACCEPTED".to_owned());
        text.push_str(&format!("$ attest {}\n{}\n\n", arguments.join(" "), answer.trim_end()));
    }
    text
}

/// The help of the commands about foreign kernels.
#[must_use]
pub fn foreign_help() -> String {
    [["judge"], ["new-kernel"], ["header"]]
        .map(|[command]| cases::cli::usage_error(&[command, "-h"]).unwrap_or_default())
        .join("\n")
}

/// What is wrong with a foreign kernel's description of itself, and how a right one is shown.
#[must_use]
pub fn foreign_info() -> String {
    type Change = fn(&mut KernelInfo);
    let raw = |change: Change| {
        let mut info = plain_info();
        change(&mut info);
        // SAFETY: the name is a literal or null.
        let read = unsafe { ForeignInfo::read(&info) };
        read.map_or_else(|error| error.to_string(), |info| in_words(&info))
    };
    let changes: [(&str, Change); 10] = [
        ("a plain one", |_| ()),
        ("a list of head dims", |i| i.head_dims[..2].copy_from_slice(&[64, 128])),
        ("version", |i| i.version = 2),
        ("name", |i| i.name = std::ptr::null()),
        ("device", |i| i.device = 7),
        ("layouts", |i| i.layouts = 0),
        ("options", |i| i.options = types::CAN_LSE),
        ("attention_caches", |i| i.attention_caches = [0; 8]),
        ("head_dim_step", |i| i.head_dim_step = -1),
        ("page_sizes", |i| i.page_sizes[0] = -16),
    ];
    changes.map(|(what, change)| format!("{what}: {}", raw(change))).join("\n")
}

fn plain_info() -> KernelInfo {
    let mut attention_caches = [0; 8];
    attention_caches[types::BF16 as usize] = 1 << types::BF16 | 1 << types::E4M3;
    attention_caches[types::F16 as usize] = 1 << types::F16;
    KernelInfo {
        struct_size: size_of::<KernelInfo>() as u32,
        version: types::ABI_VERSION,
        name: c"a kernel".as_ptr(),
        device: types::DEVICE_CUDA,
        layouts: types::NHD,
        options: types::CAN_CAUSAL,
        promises: 0,
        attention_caches,
        store_caches: [0; 8],
        head_dim_step: 8,
        head_dim_max: 256,
        head_dims: [0; 16],
        page_sizes: [0; 16],
        cache_alignment: 16,
        max_group: 0,
    }
}
