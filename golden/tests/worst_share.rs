//! How much of the error bound each arm uses is recorded, and stays within a factor of two of the record.

use std::path::Path;
use std::time::Duration;

use cases::catalogue::{Tier, entries};
use cases::executor::{Executor, InProcess};
use cases::ledger::Ledger;
use cases::run::{Checking, STORE_ARM, Settings};
use cases::session::{Demand, Item, Session, arms_of};
use cases::shares::{ShareMeter, ShareRecord, Shares};
use kernels::arm::Arm;
use kernels::device::DeviceKind;

fn record() -> ShareRecord {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("worst-share.toml");
    ShareRecord::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Worst shares of the smoke tier on `simt`.
fn measured() -> Shares {
    let arms: Vec<String> =
        Arm::ALL.iter().map(|arm| arm.name().to_owned()).chain([STORE_ARM.to_owned()]).collect();
    let mut items = Vec::new();
    for entry in entries().unwrap().into_iter().filter(|entry| entry.tier == Tier::Smoke) {
        items.extend(arms_of(&entry.case, &arms).map(|arm| Item {
            case: entry.case.clone(),
            arm: arm.clone(),
            group: entry.group.to_owned(),
            comment: entry.comment.clone(),
        }));
    }
    let session = Session {
        settings: Settings {
            device: DeviceKind::Simt,
            checking: Checking::Never,
            schedule: None,
            limit: Duration::from_secs(60),
        },
        device_detail: String::new(),
        tier: Some(Tier::Smoke),
        arms,
        jobs: 2,
        budget: None,
        demand: Demand::default(),
        known_failures: Ledger::committed(),
        interrupted: std::sync::Arc::default(),
    };
    let mut meter = ShareMeter::default();
    let executor = || Box::new(InProcess::default()) as Box<dyn Executor>;
    let finished = session.run(&items, &executor, &mut meter).unwrap();
    assert_eq!(finished.failed, 0);
    meter.shares
}

#[test]
fn no_arm_drifts_from_its_recorded_share() {
    let seen = measured();
    let drifts = record().drifts("simt-smoke", &seen);
    assert_eq!(
        drifts,
        Vec::<String>::new(),
        "attest verify --tier smoke --shares golden/worst-share.toml shows them"
    );
}

#[test]
fn no_recorded_share_passes_one_and_none_is_slack() {
    for (run, shares) in record().runs {
        for (arm, share) in shares.into_iter().filter(|(arm, _)| arm != STORE_ARM) {
            assert!(share <= 1.0, "{arm} in {run}: {share}");
            // A bound of which a whole tier uses less than a hundredth would let real mistakes pass.
            assert!(share >= 0.01, "{arm} in {run}: {share}");
        }
    }
}
