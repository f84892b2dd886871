//! Kernel sources as text: what a device compiles, and how one compiled instance is named.
//!
//! The sources are embedded in the binary; in a checkout (or with `ATTEST_KERNEL_DIR` set) the files on disk are
//! read instead, so that an edit needs no rebuild. Mutation testing replaces single files in a [`SourceSet`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One compiled instance of a kernel: file, entry point, and the macros that select the instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelSpec {
    /// File in the kernel directory, for example `scalar.cu`.
    pub file: &'static str,
    /// The `extern "C"` entry point.
    pub entry: &'static str,
    /// Preprocessor definitions, in order.
    pub defines: Vec<(&'static str, String)>,
}

impl KernelSpec {
    /// File, entry and definitions on one line, for messages.
    #[must_use]
    pub fn label(&self) -> String {
        let mut text = format!("{}:{}", self.file, self.entry);
        for (name, value) in &self.defines {
            text.push_str(&format!(" {name}={value}"));
        }
        text
    }
}

const EMBEDDED: &[(&str, &str)] = &[
    ("arch.cuh", include_str!("../cuda/arch.cuh")),
    ("attention.cuh", include_str!("../cuda/attention.cuh")),
    ("cast.cuh", include_str!("../cuda/cast.cuh")),
    ("combine.cu", include_str!("../cuda/combine.cu")),
    ("decode.cu", include_str!("../cuda/decode.cu")),
    ("decode_queries.cuh", include_str!("../cuda/decode_queries.cuh")),
    ("decode_tiles.cuh", include_str!("../cuda/decode_tiles.cuh")),
    ("dequant.cu", include_str!("../cuda/dequant.cu")),
    ("elementary.cuh", include_str!("../cuda/elementary.cuh")),
    ("formats.cuh", include_str!("../cuda/formats.cuh")),
    ("mma.cu", include_str!("../cuda/mma.cu")),
    ("mma_pairs.cu", include_str!("../cuda/mma_pairs.cu")),
    ("packed.cuh", include_str!("../cuda/packed.cuh")),
    ("pages.cuh", include_str!("../cuda/pages.cuh")),
    ("peak.cu", include_str!("../cuda/peak.cu")),
    ("scalar.cu", include_str!("../cuda/scalar.cu")),
    ("softmax.cuh", include_str!("../cuda/softmax.cuh")),
    ("store.cu", include_str!("../cuda/store.cu")),
    ("tile_copies.cuh", include_str!("../cuda/tile_copies.cuh")),
    ("tile_shape.cuh", include_str!("../cuda/tile_shape.cuh")),
    ("tiles.cuh", include_str!("../cuda/tiles.cuh")),
];

/// A complete set of kernel sources and headers, by file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSet {
    files: BTreeMap<String, Arc<str>>,
    origin: Option<PathBuf>,
}

impl SourceSet {
    /// The sources this run should use: `ATTEST_KERNEL_DIR` if set, else the checkout this binary was built from
    /// if it is still there, else the embedded copies.
    ///
    /// # Errors
    /// When a directory was named and cannot be read.
    pub fn load() -> std::io::Result<Self> {
        if let Some(dir) = std::env::var_os("ATTEST_KERNEL_DIR") {
            return Self::from_dir(Path::new(&dir));
        }
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        if checkout.is_dir() { Self::from_dir(&checkout) } else { Ok(Self::embedded()) }
    }

    /// The sources compiled into the binary.
    #[must_use]
    pub fn embedded() -> Self {
        let files = EMBEDDED.iter().map(|(name, text)| ((*name).to_owned(), Arc::from(*text))).collect();
        Self { files, origin: None }
    }

    /// Every `.cu`, `.cuh` and `.h` file of a directory.
    ///
    /// # Errors
    /// When the directory or one of its files cannot be read.
    pub fn from_dir(dir: &Path) -> std::io::Result<Self> {
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            let kept = path.extension().is_some_and(|e| e == "cu" || e == "cuh" || e == "h");
            if let (true, Some(name)) = (kept, path.file_name().and_then(|n| n.to_str())) {
                files.insert(name.to_owned(), Arc::from(std::fs::read_to_string(&path)?));
            }
        }
        Ok(Self { files, origin: Some(dir.to_owned()) })
    }

    /// The directory the files came from; `None` for the embedded copies.
    #[must_use]
    pub fn origin(&self) -> Option<&Path> {
        self.origin.as_deref()
    }

    /// The text of one file.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.files.get(name).map(AsRef::as_ref)
    }

    /// File names and texts, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(name, text)| (name.as_str(), text.as_ref()))
    }

    /// `file` and everything it includes with `#include "…"`, directly or not, sorted by name: exactly the text
    /// that a compiled instance depends on.
    ///
    /// # Errors
    /// The name of a file that is included (or asked for) and not in the set.
    pub fn closure<'a>(&'a self, file: &str) -> Result<Vec<(&'a str, &'a str)>, String> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![file.to_owned()];
        while let Some(name) = waiting.pop() {
            if found.contains_key(name.as_str()) {
                continue;
            }
            let (name, text) = self.files.get_key_value(&name).ok_or(name)?;
            found.insert(name.as_str(), text.as_ref());
            let includes = text.lines().filter_map(|line| line.trim_start().strip_prefix("#include \""));
            waiting.extend(includes.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        }
        Ok(found.into_iter().collect())
    }

    /// The same set with one file's text replaced (or added).
    #[must_use]
    pub fn with_file(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.to_owned(), Arc::from(text));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_copies_are_the_whole_kernel_directory() {
        let on_disk = SourceSet::from_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda")).unwrap();
        let names = |set: &SourceSet| set.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&SourceSet::embedded()), names(&on_disk));
        assert_eq!(SourceSet::embedded().files, on_disk.files);
    }

    #[test]
    fn a_closure_holds_what_is_included_and_nothing_else() {
        let set = SourceSet::embedded()
            .with_file("a.cu", "#include \"b.cuh\"\n#include <system>\n")
            .with_file("b.cuh", "  #include \"c.cuh\"\n")
            .with_file("c.cuh", "#include \"b.cuh\"\n");
        let names: Vec<_> = set.closure("a.cu").unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a.cu", "b.cuh", "c.cuh"]);
        assert_eq!(
            set.with_file("a.cu", "#include \"gone.cuh\"").closure("a.cu"),
            Err("gone.cuh".to_owned())
        );
    }
}
