//! Every form of access that a kernel can contain is seen by the checker, with its width, in global and in shared
//! memory.
//!
//! The fixture states for each form what must be seen. Reads and atomics are made of memory in which nothing has been
//! written, so that each is reported; writes are followed by a read of every byte, so that the bytes that are *not*
//! reported are those whose write was seen.

mod simt_support;

use kernels::device::{Device, DeviceError, FindingKind};
use kernels::simt::{Mode, SimtDevice};
use simt_support::{STREAM, config, device, launch, sources, spec, upload};

#[repr(C)]
#[derive(Clone, Copy)]
struct FormParams {
    memory: u64,
    sink: u64,
    form: i32,
    shared: i32,
    count: i32,
    probe: i32,
}

/// A line of the fixture: `case 3: … // read u32: read 4 x1`.
struct Form {
    case: i32,
    name: String,
    action: String,
    bytes: u64,
    times: u64,
    line: usize,
}

fn forms() -> Vec<Form> {
    let sources = sources();
    let text = sources.get("access_forms.cu").unwrap();
    let forms = text.lines().enumerate().filter_map(|(index, line)| {
        let case = line.trim_start().strip_prefix("case ")?.split(':').next()?.parse().ok()?;
        let (name, expected) = line.rsplit_once("// ")?.1.rsplit_once(": ")?;
        let mut words = expected.split(' ');
        let (action, bytes) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let times = words.next().map_or(1, |w| w[1..].parse().unwrap());
        Some(Form { case, name: name.to_owned(), action, bytes, times, line: index + 1 })
    });
    forms.collect()
}

const MEMORY_BYTES: u64 = 128;
const COUNT: i32 = 16;

/// Uninitialised accesses of one run: width and number on the form's own line, and number of undefined bytes found
/// by the probe.
struct Seen {
    message: String,
    times: u64,
    undefined: u64,
}

fn run(device: &SimtDevice, sink: u64, form: &Form, shared: bool, probe: u64) -> Seen {
    let memory = device.alloc(MEMORY_BYTES, STREAM).unwrap();
    let params = FormParams {
        memory: memory.0,
        sink,
        form: form.case,
        shared: shared.into(),
        count: COUNT,
        probe: probe as i32,
    };
    let result =
        launch(device, &spec("access_forms.cu", "access_form"), config(1, 1, MEMORY_BYTES as u32), &params);
    device.free(memory, STREAM).unwrap();
    let findings = match result {
        Ok(()) => vec![],
        Err(DeviceError::Findings(findings)) => findings,
        Err(error) => panic!("{}: {error}", form.name),
    };
    let mut seen = Seen { message: String::new(), times: 0, undefined: 0 };
    let own = format!("access_forms.cu:{}", form.line);
    for finding in findings {
        assert_eq!(finding.kind, FindingKind::Uninitialised, "{}: {finding:?}", form.name);
        if finding.site.as_deref() == Some(&own) {
            seen.times += finding.count;
            seen.message = finding.message;
        } else {
            seen.undefined += finding.count;
        }
    }
    seen
}

#[test]
fn every_access_form_is_seen_with_its_width() {
    let device = device(Mode::Checked);
    let sink = upload(&*device, &[0_u32; COUNT as usize]).0;
    let forms = forms();
    assert!(forms.len() >= 75, "{} forms", forms.len());
    let mut wrong = Vec::new();
    for form in &forms {
        for shared in [false, true] {
            let place = if shared { "shared" } else { "global" };
            if form.action == "write" {
                let seen = run(&device, sink, form, shared, MEMORY_BYTES);
                let written = MEMORY_BYTES - seen.undefined;
                if written != form.bytes {
                    wrong.push(format!("{} ({place}): {written} bytes seen, want {}", form.name, form.bytes));
                }
            } else {
                let seen = run(&device, sink, form, shared, 0);
                let want = format!("{}-byte {}", form.bytes, form.action);
                if !seen.message.starts_with(&want) || seen.times != form.times {
                    let Seen { message, times, .. } = seen;
                    wrong.push(format!(
                        "{} ({place}): want {want} x{}, seen x{times} {message}",
                        form.name, form.times
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
