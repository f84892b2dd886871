//! What a kernel leaves in its process, and a name for the memory that it stumbles over.

use std::cell::UnsafeCell;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// State of a process that a kernel must leave as it found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Bytes that the allocator has handed out, where it tells (glibc from 2.33 on), else 0.
    pub allocated_bytes: u64,
    /// Bytes of address space.
    pub mapped_bytes: u64,
    /// Rounding mode and flush-to-zero bits of the calling thread, where they can be read, else 0.
    pub float_control: u64,
}

impl State {
    /// The state now. Nothing is allocated on the way: it would be counted.
    #[must_use]
    pub fn now() -> Self {
        Self { allocated_bytes: allocated(), mapped_bytes: mapped(), float_control: float_control() }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn allocated() -> u64 {
    type Mallinfo2 = unsafe extern "C" fn() -> libc::mallinfo2;
    // Looked up by name, so that a program built here also starts where the C library is older than the function.
    static FOUND: OnceLock<Option<Mallinfo2>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        // SAFETY: the name is NUL-terminated, and the C library documents the function's type.
        unsafe {
            let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr());
            (!symbol.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, Mallinfo2>(symbol))
        }
    });
    // SAFETY: only reads the allocator's counters.
    found.map_or(0, |mallinfo2| unsafe {
        let info = mallinfo2();
        (info.uordblks + info.hblkhd) as u64
    })
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn allocated() -> u64 {
    0
}

fn mapped() -> u64 {
    let mut text = [0_u8; 32];
    // SAFETY: the path is NUL-terminated, and the buffer is as long as it says.
    let read = unsafe {
        let file = libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return 0;
        }
        let read = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        read
    };
    let read = &text[..usize::try_from(read).unwrap_or(0)];
    let digits = read.iter().take_while(|byte| byte.is_ascii_digit());
    let pages = digits.fold(0_u64, |pages, digit| pages * 10 + u64::from(digit - b'0'));
    pages * super::guarded::page_bytes() as u64
}

#[cfg(target_arch = "x86_64")]
fn float_control() -> u64 {
    let mut control = 0_u32;
    // SAFETY: stores the register into the variable.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack)) };
    // The lowest six bits are flags that every operation may raise.
    u64::from(control & !0x3f)
}

#[cfg(target_arch = "aarch64")]
fn float_control() -> u64 {
    let control: u64;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nostack, nomem)) };
    control
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn float_control() -> u64 {
    0
}

/// Marks a line of a worker's standard error that names what a fault was about.
pub const FAULT_MARK: &str = "attest-fault:";

/// One buffer of a call, for the fault handler.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub name: String,
    pub start: usize,
    pub bytes: usize,
    /// Where the fault handler takes an address to belong to this buffer.
    pub from: usize,
    pub to: usize,
    pub writable: bool,
}

/// Buffers of one call, and of the calls before it.
struct Table {
    buffers: Vec<Watched>,
    /// Whether the call is over.
    retired: bool,
}

/// Calls that are remembered.
const REMEMBERED: usize = 16;

/// The latest tables, newest last in a ring. Entries are replaced by the thread that makes calls and read by the handler.
static TABLES: [AtomicPtr<Table>; REMEMBERED] = [const { AtomicPtr::new(std::ptr::null_mut()) }; REMEMBERED];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Remembers the buffers of a call; returns its place in the ring.
pub(super) fn remember(buffers: Vec<Watched>) -> usize {
    let place = NEXT.fetch_add(1, Ordering::Relaxed) % REMEMBERED;
    put(place, Table { buffers, retired: false });
    place
}

/// Marks a call as over.
pub(super) fn retire(place: usize) {
    let old = TABLES[place].load(Ordering::Acquire);
    if !old.is_null() {
        // SAFETY: tables are only freed by this thread, in `put`.
        let buffers = unsafe { (*old).buffers.clone() };
        put(place, Table { buffers, retired: true });
    }
}

fn put(place: usize, table: Table) {
    let old = TABLES[place].swap(Box::into_raw(Box::new(table)), Ordering::AcqRel);
    if !old.is_null() {
        // SAFETY: it came from a box and is no longer in the ring. A fault on another thread at this very moment would lose
        // its name; the process dies by it either way.
        drop(unsafe { Box::from_raw(old) });
    }
}

/// A message on the stack: the handler may not allocate.
struct Line {
    text: [u8; 400],
    used: usize,
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let fits = text.len().min(self.text.len() - self.used);
        self.text[self.used..self.used + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.used += fits;
        Ok(())
    }
}

/// Before a process dies of a memory fault, its standard error says which buffer of which call was hit.
pub fn watch_faults() {
    // SAFETY: the handler only reads the tables, formats on its stack and writes to a file descriptor.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Set while the handler runs: a fault in the handler itself says nothing.
struct Once(UnsafeCell<bool>);
// SAFETY: a race only costs a line of text.
unsafe impl Sync for Once {}
static FAULTED: Once = Once(UnsafeCell::new(false));

extern "C" fn handler(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: see `Once`.
    unsafe {
        if std::mem::replace(&mut *FAULTED.0.get(), true) {
            return;
        }
    }
    // SAFETY: the kernel passes a valid siginfo.
    let address = unsafe { (*info).si_addr() } as usize;
    let mut line = Line { text: [0; 400], used: 0 };
    if describe(&mut line, address, access(context)).is_ok() && line.used > 0 {
        place(&mut line, context);
        let _ = line.write_str("\n");
        // SAFETY: the bytes are initialised.
        unsafe { libc::write(2, line.text.as_ptr().cast(), line.used) };
    }
    // The default action is in place again: returning repeats the access, and the process ends by the signal.
}

/// `attest-fault:KIND:what happened`; nothing if the address belongs to no buffer.
fn describe(line: &mut Line, address: usize, access: &str) -> std::fmt::Result {
    let newest = NEXT.load(Ordering::Relaxed);
    for back in 1..=REMEMBERED {
        let table = TABLES[newest.wrapping_sub(back) % REMEMBERED].load(Ordering::Acquire);
        if table.is_null() {
            continue;
        }
        // SAFETY: see `put`.
        let table = unsafe { &*table };
        let found = table.buffers.iter().find(|buffer| (buffer.from..buffer.to).contains(&address));
        if let Some(buffer) = found {
            return describe_hit(line, buffer, address, access, table.retired);
        }
    }
    Ok(())
}

fn describe_hit(
    line: &mut Line,
    buffer: &Watched,
    address: usize,
    access: &str,
    retired: bool,
) -> std::fmt::Result {
    let Watched { name, start, bytes, writable, .. } = buffer;
    if retired {
        return write!(line, "{FAULT_MARK}work-after-return:{access} {name} of a call that had returned");
    }
    if address < *start {
        let before = start - address;
        return write!(line, "{FAULT_MARK}out-of-bounds:{access} before the start of {name}: byte -{before}");
    }
    let offset = address - start;
    if offset >= *bytes {
        return write!(
            line,
            "{FAULT_MARK}out-of-bounds:{access} past the end of {name} ({bytes} bytes): byte {offset}"
        );
    }
    match writable {
        true => write!(line, "{FAULT_MARK}out-of-bounds:{access} byte {offset} of {name}"),
        false => write!(line, "{FAULT_MARK}input-written:wrote byte {offset} of {name}, which is an input"),
    }
}

/// What the faulting instruction did, where the processor tells.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn access(context: *mut libc::c_void) -> &'static str {
    // SAFETY: the handler gets a valid context.
    let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    if error & 2 != 0 { "wrote" } else { "read" }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn access(_context: *mut libc::c_void) -> &'static str {
    "accessed"
}

/// ` at FUNCTION+0x1f`, where the function is exported.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn place(line: &mut Line, context: *mut libc::c_void) {
    // SAFETY: the handler gets a valid context.
    let machine = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let at = machine.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    let at = machine.pc as usize;
    // SAFETY: dladdr fills in the struct; the process ends soon, whatever locks it takes.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(at as *const libc::c_void, &raw mut found) == 0 || found.dli_sname.is_null() {
            return;
        }
        let name = std::ffi::CStr::from_ptr(found.dli_sname).to_str().unwrap_or("?");
        let _ = write!(line, "|{name}+{:#x}", at - found.dli_saddr as usize);
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn place(_line: &mut Line, _context: *mut libc::c_void) {}
