//! Compiling one changed translation unit, and telling whether the change reached the machine code.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::device::{DeviceError, DeviceResult};
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::{KernelSpec, SourceSet};
use object::{Object, ObjectSection};
use sha2::{Digest, Sha256};

/// What the processor sees of a compiled kernel: a hash over everything that is loaded into memory. Line tables and
/// names of local variables do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of a compiled library.
    ///
    /// # Errors
    /// [`DeviceError::Environment`] when the file cannot be read or is no object file.
    pub fn of_library(path: &Path) -> DeviceResult<Self> {
        let bytes = std::fs::read(path).map_err(|e| unreadable(path, &e))?;
        let file = object::File::parse(bytes.as_slice()).map_err(|e| unreadable(path, &e))?;
        let mut hash = Sha256::new();
        for section in file.sections().filter(is_loaded) {
            let data = section.data().map_err(|e| unreadable(path, &e))?;
            hash.update(section.name_bytes().unwrap_or_default());
            hash.update(section.size().to_le_bytes());
            hash.update(data);
        }
        Ok(Self(hash.finalize().into()))
    }
}

fn is_loaded(section: &object::Section<'_, '_>) -> bool {
    const SHF_ALLOC: u64 = 2;
    matches!(section.flags(), object::SectionFlags::Elf { sh_flags, .. } if sh_flags.0 & SHF_ALLOC != 0)
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> DeviceError {
    DeviceError::Environment(format!("the compiled kernel {} cannot be read: {error}", path.display()))
}

/// A compiler of one set of sources.
pub struct Builder {
    device: Arc<SimtDevice>,
}

impl Builder {
    /// For `sources`, in checked or fast mode.
    ///
    /// # Errors
    /// [`DeviceError::Environment`] when there is no compiler.
    pub fn new(sources: SourceSet, mode: Mode) -> DeviceResult<Self> {
        let mut options = SimtOptions::new(sources);
        options.mode = mode;
        Ok(Self { device: SimtDevice::new(options)? })
    }

    /// Compiles an instance and takes the fingerprint of its code.
    ///
    /// # Errors
    /// [`DeviceError::Compile`] when the text does not compile; [`DeviceError::Environment`] for the surroundings.
    pub fn compile(&self, spec: &KernelSpec) -> DeviceResult<(PathBuf, Fingerprint)> {
        let path = self.device.library(spec)?;
        let fingerprint = Fingerprint::of_library(&path)?;
        Ok((path, fingerprint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC_FILE: &str = "combine.cu";

    fn fingerprint(text: &str) -> Fingerprint {
        let sources = SourceSet::embedded().with_file(SPEC_FILE, text);
        let spec = KernelSpec {
            file: SPEC_FILE,
            entry: "combine_splits",
            defines: vec![("OUT_FORMAT", "Bf16".to_owned())],
        };
        Builder::new(sources, Mode::Checked).unwrap().compile(&spec).unwrap().1
    }

    #[test]
    fn comments_do_not_count_but_one_operator_does() {
        let embedded = SourceSet::embedded();
        let text = embedded.get(SPEC_FILE).unwrap();
        let plain = fingerprint(text);
        // Barriers carry their line, so lines have to stay.
        assert_eq!(fingerprint(&text.replacen("// ", "// in other words: ", 1)), plain);
        let changed = text.replacen("max == negative_infinity()", "max != negative_infinity()", 1);
        assert_ne!(changed, text);
        assert_ne!(fingerprint(&changed), plain);
    }
}
