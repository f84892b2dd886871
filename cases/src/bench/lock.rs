//! An exclusive lock, so that two benches never share a card.

use std::fs::File;
use std::path::PathBuf;

/// Held as long as it lives.
#[derive(Debug)]
pub struct CardLock {
    _file: File,
}

/// Where the lock of a card lies: the same place for everybody on this machine.
#[must_use]
pub fn path(card: &str) -> PathBuf {
    let name: String = card.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    std::env::temp_dir().join(format!("attest-bench-{name}.lock"))
}

impl CardLock {
    /// Waits for the card. `waiting` is called once if somebody else has it.
    ///
    /// # Errors
    /// If the lock file cannot be made or locked.
    pub fn acquire(card: &str, waiting: impl FnOnce()) -> std::io::Result<Self> {
        let file = File::options().create(true).append(true).open(path(card))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                waiting();
                file.lock()?;
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_second_waits_for_the_first() {
        let card = format!("test card {}", std::process::id());
        let first = CardLock::acquire(&card, || panic!("nobody else has it")).unwrap();
        let (told, hear) = mpsc::channel();
        let second = std::thread::spawn({
            let card = card.clone();
            let told = told.clone();
            move || {
                let _lock = CardLock::acquire(&card, || told.send("waiting").unwrap()).unwrap();
                told.send("has it").unwrap();
            }
        });
        assert_eq!(hear.recv().unwrap(), "waiting");
        assert!(hear.try_recv().is_err());
        drop(first);
        assert_eq!(hear.recv().unwrap(), "has it");
        second.join().unwrap();
        std::fs::remove_file(path(&card)).unwrap();
    }
}
