//! Which calls a device must fail, and when the failure shows.

use serde::{Deserialize, Serialize};

use crate::call::{Call, KindSet};

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repeat {
    /// The n-th call fails and every other succeeds.
    Once,
    /// The n-th call and all later ones fail.
    Persistent,
}

impl Repeat {
    /// Name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Persistent => "persistent",
        }
    }
}

/// When a failure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// The call itself reports it, and has no effect.
    Call,
    /// The call succeeds; whoever next waits for its stream gets the error, as with a kernel that fails while it runs.
    /// Calls that put no work on a stream are not counted. Work recorded into a graph fails at the graph's next run.
    NextSynchronize,
}

impl At {
    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "at-call",
            Self::NextSynchronize => "at-next-synchronize",
        }
    }
}

/// Makes calls of a device fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FaultPlan {
    /// Kinds of calls that may fail; only these are counted.
    pub kinds: KindSet,
    /// The first call to fail, counted from 1 since the plan was put in force.
    pub nth: u64,
    /// Whether later calls fail too.
    pub repeat: Repeat,
    /// When the failure shows.
    pub at: At,
    /// Whether frees and destroys may fail, too. They are what error paths rely on, so by default they are spared.
    pub fail_frees: bool,
}

impl FaultPlan {
    /// The `nth` call of any kind, counted from 1, fails once, at the call; frees and destroys are spared.
    #[must_use]
    pub fn nth(nth: u64) -> Self {
        Self { kinds: KindSet::ALL, nth, repeat: Repeat::Once, at: At::Call, fail_frees: false }
    }

    /// The same plan for calls of these kinds only.
    #[must_use]
    pub fn of(self, kinds: KindSet) -> Self {
        Self { kinds, ..self }
    }

    /// Whether the plan counts a call.
    #[must_use]
    pub fn counts(&self, call: Call) -> bool {
        let teardown_allowed = self.fail_frees || !call.is_teardown();
        let shows = self.at == At::Call || call.is_deferrable();
        self.kinds.contains(call.kind()) && teardown_allowed && shows
    }

    /// Whether the `number`-th counted call is to fail.
    #[must_use]
    pub fn strikes(&self, number: u64) -> bool {
        match self.repeat {
            Repeat::Once => number == self.nth,
            Repeat::Persistent => number >= self.nth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::CallKind;

    #[test]
    fn a_plan_counts_what_it_may_fail() {
        let plan = FaultPlan::nth(1);
        assert!(plan.counts(Call::Alloc) && plan.counts(Call::EndCapture) && plan.counts(Call::Synchronize));
        assert!(!plan.counts(Call::Free) && !plan.counts(Call::DestroyStream));
        assert!(FaultPlan { fail_frees: true, ..plan }.counts(Call::DestroyGraph));
        let deferred = FaultPlan { at: At::NextSynchronize, ..plan };
        assert!(deferred.counts(Call::Launch) && !deferred.counts(Call::Alloc));
        let copies = plan.of(KindSet::only(CallKind::Copy));
        assert!(copies.counts(Call::CopyToHost) && !copies.counts(Call::Memset));
    }

    #[test]
    fn once_strikes_one_call_and_persistent_all_from_there() {
        let hits = |repeat| {
            (1..=4).filter(|n| FaultPlan { repeat, ..FaultPlan::nth(2) }.strikes(*n)).collect::<Vec<_>>()
        };
        assert_eq!(hits(Repeat::Once), [2]);
        assert_eq!(hits(Repeat::Persistent), [2, 3, 4]);
    }
}
