//! Mutation testing: would the suite have noticed a small mistake in a kernel or in how it is launched?
//!
//! [`discover`](discover::discover) finds mutants in the kernels' syntax trees, [`choose`](checks::choose) picks the
//! committed cases that judge them, [`Baseline`](baseline::Baseline) makes sure that these pass on the unchanged
//! kernels, [`Coverage`](coverage::Coverage) tells which of them execute what a mutant changes, and
//! [`Campaign`](campaign::Campaign) tries one mutant after the other.

/// An enum of mistakes, each with its name on the command line and in reports, and what it does on one line.
macro_rules! named_kinds {
    ($(#[$doc:meta])* $kinds:ident: $($variant:ident, $name:literal, $summary:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $kinds {
            $(#[doc = $summary] $variant,)*
        }

        impl $kinds {
            /// Every one, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name on the command line and in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it does, on one line.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$variant => $summary,)* }
            }
        }
    };
}

pub mod baseline;
pub mod campaign;
pub mod canary;
pub mod change;
pub mod checks;
pub mod compiled;
pub mod coverage;
pub mod discover;
pub mod engine;
pub mod launch;
pub mod marks;
pub mod masked;
pub mod mutant;
pub mod operators;
pub mod outcome;
mod progress;
pub mod report;
pub mod reviewed;
pub mod select;
pub mod serve;
pub mod trial;
