//! The kernels as they are shipped: cubins by chip, and the sources for all other chips.

use std::borrow::Cow;

use miniz_oxide::inflate::decompress_to_vec_with_limit;

/// One file of `kernels/cu`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    /// As others include it.
    pub(crate) name: &'static str,
    /// C++.
    pub(crate) text: &'static str,
}

impl Source {
    /// Whether it has kernels for a chip of this capability: files for Hopper alone end in 90.
    pub(crate) fn is_module(&self, capability: u32) -> bool {
        self.name.ends_with(".cu") && (capability == 90 || !self.name.ends_with("90.cu"))
    }
}

/// Machine code of one source for one chip.
#[derive(Debug)]
struct Cubin {
    source: &'static str,
    /// Compute capability, 90 for 9.0.
    chip: u32,
    /// Of the machine code.
    bytes: usize,
    /// Deflated.
    packed: &'static [u8],
}

impl Cubin {
    /// Empty where the packed bytes are broken; drivers refuse that, and a test sees it before.
    fn image(&self) -> Vec<u8> {
        decompress_to_vec_with_limit(self.packed, self.bytes).unwrap_or_default()
    }
}

/// What `kernels/cu/build` made.
struct Manifest {
    sources: &'static [Source],
    cubins: &'static [Cubin],
}

const MANIFEST: Manifest = include!("../../cu/cubins/manifest.in");

/// The cubins for a chip, by the name of their source; `None` for one that has none. Those of 8.0
/// serve every 8.x; those of 9.0 use what no other chip has.
pub(crate) fn cubins(
    capability: u32,
) -> Option<impl Iterator<Item = (&'static str, Cow<'static, [u8]>)>> {
    let chip = match capability {
        80..=89 => 80,
        90 => 90,
        _ => return None,
    };
    let cubins = MANIFEST.cubins.iter().filter(move |cubin| cubin.chip == chip);
    Some(cubins.map(|cubin| (cubin.source, cubin.image().into())))
}

/// Every file that kernels are compiled from.
pub(crate) fn sources() -> &'static [Source] {
    MANIFEST.sources
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: &str = "cubins are not those of the sources: run kernels/cu/build";

    /// The sources as they are now, by name.
    fn files() -> Vec<(String, Vec<u8>)> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/cu");
        let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let is_source = |name: &str| name.ends_with(".cu") || name.ends_with(".cuh");
        let named = paths.map(|path| (path.file_name().unwrap().to_string_lossy().into(), path));
        let files = named.filter(|(name, _): &(String, _)| is_source(name));
        files.map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
    }

    #[test]
    fn the_manifest_is_of_the_sources() {
        let manifest = include_str!("../../cu/cubins/manifest.in");
        let files = files();
        assert_eq!(files.len(), sources().len(), "{STALE}");
        for (name, text) in files {
            let crc = crc32fast::hash(&text);
            let line = format!("\"../{name}\") }}, // {crc:08x}\n");
            assert!(manifest.contains(&line), "{name}: {STALE}");
        }
    }

    #[test]
    fn every_module_has_cubins() {
        for capability in [80, 86, 90] {
            let modules = sources().iter().filter(|source| source.is_module(capability));
            let modules: Vec<_> = modules.map(|source| source.name).collect();
            let (names, images): (Vec<_>, Vec<_>) = cubins(capability).unwrap().unzip();
            assert_eq!(names, modules, "{capability}");
            for image in images {
                assert!(image.starts_with(b"\x7fELF"), "{capability}");
            }
        }
        assert!(cubins(75).is_none() && cubins(100).is_none());
    }

    #[test]
    fn cubins_are_whole() {
        for cubin in MANIFEST.cubins {
            assert_eq!(cubin.image().len(), cubin.bytes, "{} {}", cubin.source, cubin.chip);
        }
    }
}
