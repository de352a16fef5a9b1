//! Writes GGUF files: for tests and for tools that need a small one.

/// A version 3 file in the making.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    metadata: Vec<u8>,
    metadata_count: u64,
    index: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

const ALIGNMENT: usize = 32;

impl Writer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds metadata.
    #[must_use]
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    /// Adds metadata.
    #[must_use]
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    /// Adds metadata.
    #[must_use]
    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[value.into()])
    }

    /// Adds metadata.
    #[must_use]
    pub fn str(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &string(value))
    }

    /// Adds metadata.
    #[must_use]
    pub fn strs(self, key: &str, values: &[&str]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| string(value)).collect();
        self.array(key, 8, values.len(), &items)
    }

    /// Adds metadata.
    #[must_use]
    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 5, values.len(), &items)
    }

    /// Adds metadata.
    #[must_use]
    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 6, values.len(), &items)
    }

    /// Adds a value whose type code and bytes the caller makes.
    #[must_use]
    pub fn raw(mut self, key: &str, type_code: u32, value: &[u8]) -> Self {
        self.metadata.extend(string(key));
        self.metadata.extend(type_code.to_le_bytes());
        self.metadata.extend(value);
        self.metadata_count += 1;
        self
    }

    /// Adds a tensor; `dims[0]` is the length of a row, `type_code` that of
    /// [`TensorType`](crate::TensorType).
    #[must_use]
    pub fn tensor(mut self, name: &str, dims: &[u64], type_code: u32, bytes: &[u8]) -> Self {
        self.index.extend(string(name));
        self.index.extend((dims.len() as u32).to_le_bytes());
        self.index.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.index.extend(type_code.to_le_bytes());
        self.index.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        self.tensor_count += 1;
        self
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.tensor_count.to_le_bytes());
        file.extend(self.metadata_count.to_le_bytes());
        file.extend(self.metadata);
        file.extend(self.index);
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(self.data);
        file
    }

    fn array(self, key: &str, item_code: u32, count: usize, items: &[u8]) -> Self {
        let mut value = item_code.to_le_bytes().to_vec();
        value.extend((count as u64).to_le_bytes());
        value.extend(items);
        self.raw(key, 9, &value)
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
