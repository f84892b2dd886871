//! Launch code that does not refuse what it must, and kernels that touch what is not theirs.

use super::super::{Behaviour, Impostor, Kind};
use super::anywhere;
use crate::case::{Case, Expectation};
use crate::executor::protocol::Status;
use crate::executor::{Job, Reply};

fn replying(
    name: &'static str,
    wrong: &'static str,
    applies: fn(&Case) -> bool,
    change: fn(&Job, &mut Reply),
) -> Impostor {
    let kind = Kind::Refusal;
    Impostor { name, kind, wrong, blunt: false, applies, behaviour: Behaviour::Reply(change) }
}

fn must_refuse(case: &Case) -> bool {
    matches!(case.expectation, Expectation::Reject { .. })
}

fn must_serve(case: &Case) -> bool {
    !must_refuse(case)
}

pub(super) fn impostors() -> Vec<Impostor> {
    vec![
        replying("accepts-everything", "runs a call that must be refused", must_refuse, |_, reply| {
            reply.status = Status::Completed;
        }),
        replying("names-another-argument", "refuses for the wrong reason", must_refuse, |_, reply| {
            reply.status = Status::Refused {
                argument: "alignment".to_owned(),
                message: "alignment is 3; accepted: 16".to_owned(),
            };
        }),
        replying(
            "refuses-after-launching",
            "launches a kernel before it refuses",
            must_refuse,
            |_, reply| {
                reply.launches = 1;
            },
        ),
        replying("refuses-after-writing", "writes to a buffer before it refuses", must_refuse, |_, reply| {
            touch(reply, 0);
        }),
        replying("refuses-everything", "refuses a valid call", must_serve, |_, reply| {
            reply.status = Status::Refused {
                argument: "q".to_owned(),
                message: "q is unusual; accepted: nothing".to_owned(),
            };
        })
        .blunt(),
        replying("writes-into-inputs", "changes a byte of an input", anywhere, |job, reply| {
            let returned = job.buffers.iter().filter(|buffer| buffer.returned);
            let input = returned.enumerate().find(|(_, b)| is_input(&b.name) && !b.bytes.is_empty());
            if let Some((index, _)) = input {
                touch(reply, index);
            }
        })
        .blunt(),
        replying("keeps-memory", "does not give its scratch back", must_serve, |_, reply| {
            reply.pool.after_bytes = reply.pool.before_bytes + 256;
        })
        .blunt(),
    ]
}

fn is_input(name: &str) -> bool {
    !matches!(name, "out" | "lse") && !name.ends_with("_cache")
}

/// Changes the first byte of a buffer that has one, from `index` on.
fn touch(reply: &mut Reply, index: usize) {
    if let Some(byte) = reply.buffers[index..].iter_mut().find_map(|buffer| buffer.first_mut()) {
        *byte ^= 1;
    }
}
