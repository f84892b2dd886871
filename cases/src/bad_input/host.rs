//! Metadata whose host copies do not make sense.

use kernels::args::{AttentionArgs, HostMetadata, StoreArgs};

use super::{BadCall, PAGES};

type Change = fn(&mut HostMetadata);

fn table(host: &mut HostMetadata) -> &mut Vec<i32> {
    host.block_table.get_or_insert_default()
}
fn lens(host: &mut HostMetadata) -> &mut Vec<i32> {
    host.seq_lens.get_or_insert_default()
}
fn starts(host: &mut HostMetadata) -> &mut Vec<i32> {
    host.query_start_loc.get_or_insert_default()
}

const CHANGES: [(&str, &str, Change); 21] = [
    ("block_table", "-1 in a used column", |h| table(h)[0] = -1),
    ("block_table", "-1 in a later request", |h| table(h)[4] = -1),
    ("block_table", "num_pages", |h| table(h)[2] = PAGES as i32),
    ("block_table", "INT_MAX", |h| table(h)[1] = i32::MAX),
    ("block_table", "INT_MIN", |h| table(h)[3] = i32::MIN),
    ("block_table", "one entry too few", |h| {
        table(h).pop();
    }),
    ("block_table", "one entry too many", |h| table(h).push(0)),
    ("host.seq_lens", "absent beside a block table", |h| h.seq_lens = None),
    ("seq_lens", "-1", |h| lens(h)[0] = -1),
    ("seq_lens", "INT_MIN", |h| lens(h)[1] = i32::MIN),
    ("seq_lens", "past the table", |h| lens(h)[1] = 49),
    ("seq_lens", "INT_MAX", |h| lens(h)[0] = i32::MAX),
    ("seq_lens", "one entry too few", |h| {
        lens(h).pop();
    }),
    ("seq_lens", "one entry too many", |h| lens(h).push(1)),
    ("query_start_loc", "falling", |h| starts(h)[1] = -1),
    ("query_start_loc", "falling at the end", |h| *starts(h) = vec![0, 4, 3]),
    ("query_start_loc", "not from 0", |h| starts(h)[0] = 1),
    ("query_start_loc", "ending before total_q", |h| *starts(h) = vec![0, 2, 4]),
    ("query_start_loc", "ending after total_q", |h| *starts(h) = vec![0, 3, 6]),
    ("query_start_loc", "one entry too few", |h| {
        starts(h).pop();
    }),
    ("query_start_loc", "one entry too many", |h| starts(h).push(5)),
];

pub(super) fn attention(accepted: &AttentionArgs) -> Vec<BadCall<AttentionArgs>> {
    let call = |(argument, how, change): (&'static str, &str, Change)| {
        let mut args = accepted.clone();
        change(&mut args.host);
        BadCall { argument, how: format!("host copy: {how}"), named: vec![argument], args }
    };
    CHANGES.into_iter().map(call).collect()
}

type SlotChange = fn(&mut Vec<i64>);

const SLOT_CHANGES: [(&str, &str, SlotChange); 8] = [
    ("slot_mapping", "-2", |s| s[1] = -2),
    ("slot_mapping", "num_pages · page_size", |s| s[1] = 96),
    ("slot_mapping", "2^31", |s| s[0] = 1 << 31),
    ("slot_mapping", "i64::MAX", |s| s[0] = i64::MAX),
    ("slot_mapping", "i64::MIN", |s| s[0] = i64::MIN),
    ("slot_mapping", "one slot twice", |s| s[4] = 5),
    ("host_slot_mapping", "one entry too few", |s| {
        s.pop();
    }),
    ("host_slot_mapping", "one entry too many", |s| s.push(-1)),
];

pub(super) fn store(accepted: &StoreArgs) -> Vec<BadCall<StoreArgs>> {
    let call = |(argument, how, change): (&'static str, &str, SlotChange)| {
        let mut args = accepted.clone();
        change(args.host_slot_mapping.get_or_insert_default());
        BadCall { argument, how: format!("host copy: {how}"), named: vec![argument], args }
    };
    SLOT_CHANGES.into_iter().map(call).collect()
}
