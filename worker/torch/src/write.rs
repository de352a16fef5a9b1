//! Writes files as `torch.save` does: for tests.

use std::io::Write;

use rawzip::{CompressionMethod, ZipArchiveWriter};

/// A dictionary of tensors in the making.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    /// What puts the tensors into it.
    entries: Vec<u8>,
    storages: Vec<Vec<u8>>,
}

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor with a storage of its own, which PyTorch calls so: `FloatStorage`.
    #[must_use]
    pub fn tensor(self, name: &str, storage: &str, shape: &[u32], bytes: &[u8]) -> Self {
        let mut strides = vec![1; shape.len()];
        for idx in (1..shape.len()).rev() {
            strides[idx - 1] = strides[idx] * shape[idx];
        }
        let key = self.storages.len();
        let elements = shape.iter().product();
        let mut all = self.view(name, (storage, key, elements), 0, shape, &strides);
        all.storages.push(bytes.to_vec());
        all
    }

    /// Adds a tensor that is a part of a storage: what PyTorch calls it, its number and how many
    /// elements it has.
    #[must_use]
    pub fn view(
        mut self,
        name: &str,
        (storage, key, elements): (&str, usize, u32),
        offset: i32,
        shape: &[u32],
        strides: &[u32],
    ) -> Self {
        let reference = [
            b"(".to_vec(),
            text("storage"),
            format!("ctorch\n{storage}\n").into_bytes(),
            text(&key.to_string()),
            text("cpu"),
            int(elements),
            b"tQ".to_vec(),
        ];
        let parts = [
            text(name),
            b"ctorch._utils\n_rebuild_tensor_v2\n(".to_vec(),
            reference.concat(),
            int(offset.cast_unsigned()),
            tuple(shape),
            tuple(strides),
            b"\x89ccollections\nOrderedDict\n)RtR".to_vec(),
        ];
        self.entries.extend(parts.concat());
        self
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        let pickle = [b"\x80\x02}(".as_slice(), &self.entries, b"u."].concat();
        let storages: Vec<&[u8]> = self.storages.iter().map(Vec::as_slice).collect();
        archive(&pickle, &storages)
    }
}

/// A file with this pickle, and with storages that are called by their numbers.
pub fn archive(pickle: &[u8], storages: &[&[u8]]) -> Vec<u8> {
    let keys: Vec<String> = (0..storages.len()).map(|key| format!("m/data/{key}")).collect();
    let mut entries: Vec<(&str, &[u8])> = vec![("m/data.pkl", pickle), ("m/version", b"3\n")];
    entries.extend(keys.iter().map(String::as_str).zip(storages.iter().copied()));
    stored(&entries)
}

/// An archive of these entries, without anything between them: at any alignment.
pub fn stored(entries: &[(&str, &[u8])]) -> Vec<u8> {
    write(entries).expect("memory can be written")
}

fn write(entries: &[(&str, &[u8])]) -> Result<Vec<u8>, rawzip::Error> {
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for (name, bytes) in entries {
        let (mut entry, config) =
            archive.new_file(*name).compression_method(CompressionMethod::STORE).start()?;
        let mut data = config.wrap(&mut entry);
        data.write_all(bytes)?;
        let (_, descriptor) = data.finish()?;
        entry.finish(descriptor)?;
    }
    archive.finish()
}

fn int(int: u32) -> Vec<u8> {
    [b"J".as_slice(), &int.to_le_bytes()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn tuple(ints: &[u32]) -> Vec<u8> {
    [b"(".to_vec(), ints.iter().copied().flat_map(int).collect(), b"t".to_vec()].concat()
}
