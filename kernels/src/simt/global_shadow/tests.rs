//! The shadow against a plain model: every access of every byte kept.

use proptest::prelude::*;

use super::{Action, GlobalShadow};

const BYTES: usize = 24;

#[derive(Clone, Debug)]
enum Step {
    Access { offset: usize, bytes: usize, action: Action },
    NextBlock,
    NextLaunch,
}

fn step() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        4 => Just(Action::Read),
        3 => Just(Action::Write),
        1 => Just(Action::Atomic)
    ];
    let access = (0..BYTES, 1..17_usize, action).prop_map(|(offset, bytes, action)| {
        let bytes = if action == Action::Atomic { 4 } else { bytes };
        let offset = offset.min(BYTES - bytes);
        Step::Access { offset, bytes, action }
    });
    prop_oneof![20 => access, 6 => Just(Step::NextBlock), 1 => Just(Step::NextLaunch)]
}

fn agree(steps: &[Step]) -> Result<(), TestCaseError> {
    let base = 1 << 20;
    let mut shadow = GlobalShadow::new((base, 1 << 20)).unwrap();
    shadow.start_launch(1000).unwrap();
    let mut block = shadow.start_block();
    // Block and kind of everything that touched each byte in this launch, plain writes replacing earlier ones.
    let mut model: Vec<Vec<(u32, Action)>> = vec![vec![]; BYTES];
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Access { offset, bytes, action } => {
                let got = shadow.access(block, base + offset, bytes, action, number as u32 + 1);
                let mut want = false;
                for byte in &mut model[offset..offset + bytes] {
                    let clashes = |&(other, kind): &(u32, Action)| {
                        let harmless = kind == action && action != Action::Write;
                        other != block && !harmless
                    };
                    want |= byte.iter().any(clashes);
                    if action == Action::Write {
                        byte.retain(|&(_, kind)| kind != Action::Write);
                    }
                    byte.push((block, action));
                }
                prop_assert_eq!(got.is_some(), want, "step {} {:?}: {:?}", number, step, got);
            }
            Step::NextBlock => block = shadow.start_block(),
            Step::NextLaunch => {
                shadow.start_launch(1000).unwrap();
                block = shadow.start_block();
                model.iter_mut().for_each(Vec::clear);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn the_shadow_accuses_exactly_when_the_model_does(steps in prop::collection::vec(step(), 1..60)) {
        agree(&steps)?;
    }

    #[test]
    fn defined_bytes_are_the_ones_written(
        writes in prop::collection::vec((0..200_usize, 1..60_usize), 0..6),
        forgotten in prop::option::of((0..200_usize, 1..100_usize)),
    ) {
        let base = 1 << 20;
        let mut shadow = GlobalShadow::new((base, 1 << 20)).unwrap();
        let mut model = [false; 400];
        for (at, bytes) in writes {
            shadow.define_range(base + at, bytes);
            model[at..at + bytes].fill(true);
        }
        if let Some((at, bytes)) = forgotten {
            // Allocations start at multiples of 16 and have groups of eight bytes of their own.
            let (at, bytes) = (at & !15, bytes.next_multiple_of(8));
            shadow.forget(base + at, bytes).unwrap();
            model[at..at + bytes].fill(false);
        }
        for (i, &defined) in model.iter().enumerate() {
            prop_assert_eq!(shadow.first_undefined(base + i, 1).is_none(), defined, "byte {}", i);
        }
        let first = (100..116).find(|&i| !model[i]);
        prop_assert_eq!(shadow.first_undefined(base + 100, 16), first.map(|i| base + i));
        prop_assert_eq!(shadow.all_defined(base + 60, 99), model[60..159].iter().all(|&d| d));
    }
}

#[test]
fn large_ranges_are_defined_and_forgotten_whole() {
    let base = 1 << 30;
    let mut shadow = GlobalShadow::new((base, 1 << 30)).unwrap();
    let bytes = 300 << 20;
    shadow.define_range(base + 16, bytes);
    assert!(shadow.all_defined(base + 16, bytes));
    assert_eq!(shadow.first_undefined(base + 15, 1), Some(base + 15));
    shadow.forget(base + 16, bytes).unwrap();
    for at in [16, 24, 4096 * 8, 100 << 20, bytes + 8] {
        assert_eq!(shadow.first_undefined(base + at, 8), Some(base + at));
    }
}
