//! Checks of host copies of metadata: what a kernel would otherwise have to trust.

use super::attention::AttentionShape;
use crate::args::HostMetadata;
use crate::error::ArgumentError;

/// Checks whatever host copies are given against the shapes and against each other.
pub(super) fn check_host(host: &HostMetadata, shape: &AttentionShape) -> Result<(), ArgumentError> {
    if let Some(starts) = &host.query_start_loc {
        check_query_start_loc(starts, shape)?;
    }
    if let Some(lens) = &host.seq_lens {
        check_seq_lens(lens, shape)?;
    }
    match (&host.block_table, &host.seq_lens) {
        (None, _) => Ok(()),
        (Some(_), None) => {
            Err(ArgumentError::new("host.seq_lens", "absent", "present where host.block_table is"))
        }
        (Some(table), Some(lens)) => check_block_table(table, lens, shape),
    }
}

fn check_query_start_loc(starts: &[i32], shape: &AttentionShape) -> Result<(), ArgumentError> {
    if starts.len() as u64 != shape.num_requests + 1 {
        let accepted = format!("{} (num_requests + 1)", shape.num_requests + 1);
        return Err(ArgumentError::new("query_start_loc length", starts.len(), accepted));
    }
    if starts[0] != 0 {
        return Err(ArgumentError::new("query_start_loc[0]", starts[0], "0"));
    }
    for (r, pair) in starts.windows(2).enumerate() {
        if pair[1] < pair[0] {
            return Err(ArgumentError::new(
                format!("query_start_loc[{}]", r + 1),
                pair[1],
                format!("at least query_start_loc[{r}], {}", pair[0]),
            ));
        }
        let q_len = u64::from(pair[1].abs_diff(pair[0]));
        if q_len > shape.max_query_len {
            let accepted = format!("at least {q_len}, the query length of request {r}");
            return Err(ArgumentError::new("max_query_len", shape.max_query_len, accepted));
        }
    }
    let last = starts[starts.len() - 1];
    if u64::from(last.unsigned_abs()) != shape.total_q {
        let name = format!("query_start_loc[{}]", starts.len() - 1);
        return Err(ArgumentError::new(name, last, format!("{} (total_q)", shape.total_q)));
    }
    Ok(())
}

fn check_seq_lens(lens: &[i32], shape: &AttentionShape) -> Result<(), ArgumentError> {
    if lens.len() as u64 != shape.num_requests {
        let accepted = format!("{} (num_requests)", shape.num_requests);
        return Err(ArgumentError::new("seq_lens length", lens.len(), accepted));
    }
    let capacity = shape.block_table_width.saturating_mul(shape.page_size);
    for (r, len) in lens.iter().enumerate() {
        let name = || format!("seq_lens[{r}]");
        let len = u64::try_from(*len).map_err(|_| ArgumentError::new(name(), len, "0 or more"))?;
        if len > capacity {
            let accepted = format!(
                "at most {capacity}, the {} pages of {} slots of a block_table row",
                shape.block_table_width, shape.page_size
            );
            return Err(ArgumentError::new(name(), len, accepted));
        }
        if len > shape.max_seq_len {
            let accepted = format!("at least {len}, the length of request {r}");
            return Err(ArgumentError::new("max_seq_len", shape.max_seq_len, accepted));
        }
    }
    Ok(())
}

fn check_block_table(table: &[i32], lens: &[i32], shape: &AttentionShape) -> Result<(), ArgumentError> {
    let width = shape.block_table_width as usize;
    if table.len() as u64 != shape.num_requests.saturating_mul(shape.block_table_width) {
        let accepted = format!("{} x {} (num_requests x width)", shape.num_requests, width);
        return Err(ArgumentError::new("block_table length", table.len(), accepted));
    }
    for (r, len) in lens.iter().enumerate() {
        let pages = u64::from(len.unsigned_abs()).div_ceil(shape.page_size) as usize;
        for (column, page) in table[r * width..][..pages].iter().enumerate() {
            if u64::try_from(*page).map_or(true, |page| page >= shape.num_pages) {
                return Err(ArgumentError::new(
                    format!("block_table[{r}][{column}]"),
                    page,
                    format!("0 or more and below {} (num_pages)", shape.num_pages),
                ));
            }
        }
    }
    Ok(())
}
