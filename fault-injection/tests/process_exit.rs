//! A process that ends with guards alive ends well: nothing panics, nothing crashes, and its exit code is its own.

use std::process::{Command, ExitCode};

use fault_injection::Child;
use kernels::device::DeviceResult;
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;

const CHILD: &str = "FAULT_INJECTION_TEST_CHILD";

fn main() -> ExitCode {
    let sources = SourceSet::load().expect("kernel sources");
    let open = |sources: SourceSet| -> DeviceResult<kernels::device::DeviceRef> {
        Ok(SimtDevice::new(SimtOptions { mode: Mode::Fast, ..SimtOptions::new(sources) })?)
    };
    if let Ok(name) = std::env::var(CHILD) {
        let child: Child = name.parse().expect("a task");
        println!("{}", child.run(open, sources).expect("the task is done"));
        return ExitCode::from(7);
    }
    for (child, said) in [(Child::Exit, "left\n"), (Child::Plain, "")] {
        let this = std::env::current_exe().expect("this program");
        let output = Command::new(this).env(CHILD, child.name()).output().expect("a process");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(7), "{child:?}: {err}");
        assert!(err.is_empty(), "{child:?}: {err}");
        assert!(out.starts_with(said) && out.len() > 1, "{child:?}: {out}");
    }
    println!("a process that ends with guards alive ends well");
    ExitCode::SUCCESS
}
