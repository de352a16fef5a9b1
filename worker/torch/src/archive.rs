//! The archive around a pickle and its storages: entries that are stored, not compressed.

use std::collections::BTreeMap;

use rawzip::{CompressionMethod, ZipArchive, ZipFileHeaderRecord, ZipSliceArchive};

use crate::TENSORS_MAX;
use crate::error::TorchError;

/// A storage for each tensor, and what stands beside them.
const ENTRIES_MAX: usize = TENSORS_MAX + 64;

/// The entries of an archive, which lie in the file, in it one behind the other.
#[derive(Debug)]
pub(crate) struct Archive<'a> {
    /// The one that has everything, called as the file was first.
    folder: String,
    entries: BTreeMap<String, &'a [u8]>,
}

impl<'a> Archive<'a> {
    pub(crate) fn read(file: &'a [u8]) -> Result<Self, TorchError> {
        let broken = |err: rawzip::Error| TorchError::archive(err.to_string());
        let archive = ZipArchive::from_slice(file).map_err(broken)?;
        let (mut entries, mut ranges) = (BTreeMap::new(), Vec::new());
        for record in archive.entries() {
            let record = record.map_err(broken)?;
            let name = name(&record)?;
            let (start, end) = range(&archive, &record, &name)?;
            let bytes = &file[start..end];
            ranges.push((start, end));
            if entries.insert(name.clone(), bytes).is_some() {
                return Err(TorchError::entry(&name, "appears twice"));
            }
            if entries.len() > ENTRIES_MAX {
                let what = format!("more entries than {ENTRIES_MAX}");
                return Err(TorchError::archive(what));
            }
        }
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        if let Some(both) = ranges.array_windows().find(|[a, b]| b.0 < a.1) {
            return Err(TorchError::archive(format!("entries overlap at byte {}", both[1].0)));
        }
        let folder = folder(&entries)?;
        Ok(Self { folder, entries })
    }

    /// The bytes of what is called so in the archive's folder.
    pub(crate) fn entry(&self, name: &str) -> Result<&'a [u8], TorchError> {
        let bytes = self.entries.get(&format!("{}/{name}", self.folder));
        bytes.copied().ok_or_else(|| self.refused(name, "missing"))
    }

    pub(crate) fn refused(&self, name: &str, what: impl Into<String>) -> TorchError {
        TorchError::entry(&format!("{}/{name}", self.folder), what)
    }
}

/// The folder whose pickle this is.
fn folder(entries: &BTreeMap<String, &[u8]>) -> Result<String, TorchError> {
    let of_pickle = |name: &String| {
        let folder = name.strip_suffix("/data.pkl")?;
        (!folder.contains('/')).then(|| folder.to_owned())
    };
    let mut folders = entries.keys().filter_map(of_pickle);
    match (folders.next(), folders.next()) {
        (Some(folder), None) => Ok(folder),
        (None, _) => Err(TorchError::archive("no data.pkl, as torch.save writes it")),
        (Some(_), Some(second)) => Err(TorchError::entry(&second, "a second data.pkl")),
    }
}

fn name(record: &ZipFileHeaderRecord<'_>) -> Result<String, TorchError> {
    let bytes = record.file_path().as_bytes().to_vec();
    let not_text = |bytes: Vec<u8>| {
        TorchError::entry(&String::from_utf8_lossy(&bytes), "its name must be UTF-8")
    };
    String::from_utf8(bytes).map_err(|err| not_text(err.into_bytes()))
}

/// Where an entry's bytes lie: in front of the directory.
fn range(
    archive: &ZipSliceArchive<&[u8]>,
    record: &ZipFileHeaderRecord<'_>,
    name: &str,
) -> Result<(usize, usize), TorchError> {
    let refused = |what: String| Err(TorchError::entry(name, what));
    if record.flags().is_encrypted() {
        return refused("encrypted, which is not read: convert the file to safetensors".to_owned());
    }
    if record.compression_method() != CompressionMethod::STORE {
        let method = record.compression_method().as_u16();
        return refused(format!(
            "compressed by method {method}, and only stored entries are read: convert the file to \
             safetensors"
        ));
    }
    let (stored, bytes) = (record.compressed_size_hint(), record.uncompressed_size_hint());
    if stored != bytes {
        return refused(format!("{stored} stored bytes are said to be {bytes}"));
    }
    let entry = archive
        .get_entry(record.wayfinder())
        .map_err(|err| TorchError::entry(name, format!("{bytes} bytes: {err}")))?;
    if entry.local_header().file_path().as_bytes() != name.as_bytes() {
        return refused("called otherwise where it begins".to_owned());
    }
    let ((start, end), bound) = (entry.compressed_data_range(), archive.directory_offset());
    if end > bound {
        return refused(format!("ends at byte {end}: must be at most {bound}"));
    }
    // Both fit: they are offsets in a slice.
    Ok((start as usize, end as usize))
}
