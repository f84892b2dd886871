//! Every error message that a user can meet before a kernel runs.

use cases::bad_input::{self, attention_calls, store_calls};
use cases::case::Case;
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
    const USES: [&[&str]; 19] = [
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
    ];
    let mut text = String::new();
    for arguments in USES {
        let answer = cases::cli::usage_error(arguments).unwrap_or_else(|| "ACCEPTED".to_owned());
        text.push_str(&format!("$ attest {}\n{}\n\n", arguments.join(" "), answer.trim_end()));
    }
    text
}
