//! Element types, as PyTorch and safetensors call them.

/// How elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dtype {
    /// As safetensors has it: `F32`.
    pub name: &'static str,
    /// Bytes of an element.
    pub bytes: usize,
}

/// What PyTorch calls it, and its storage where that says of what type it is.
const DTYPES: [(&str, &str, Dtype); 20] = [
    ("float32", "FloatStorage", Dtype { name: "F32", bytes: 4 }),
    ("float16", "HalfStorage", Dtype { name: "F16", bytes: 2 }),
    ("bfloat16", "BFloat16Storage", Dtype { name: "BF16", bytes: 2 }),
    ("float64", "DoubleStorage", Dtype { name: "F64", bytes: 8 }),
    ("int64", "LongStorage", Dtype { name: "I64", bytes: 8 }),
    ("int32", "IntStorage", Dtype { name: "I32", bytes: 4 }),
    ("int16", "ShortStorage", Dtype { name: "I16", bytes: 2 }),
    ("int8", "CharStorage", Dtype { name: "I8", bytes: 1 }),
    ("uint8", "ByteStorage", Dtype { name: "U8", bytes: 1 }),
    ("bool", "BoolStorage", Dtype { name: "BOOL", bytes: 1 }),
    ("complex64", "ComplexFloatStorage", Dtype { name: "C64", bytes: 8 }),
    ("complex128", "ComplexDoubleStorage", Dtype { name: "C128", bytes: 16 }),
    ("uint16", "", Dtype { name: "U16", bytes: 2 }),
    ("uint32", "", Dtype { name: "U32", bytes: 4 }),
    ("uint64", "", Dtype { name: "U64", bytes: 8 }),
    ("float8_e4m3fn", "", Dtype { name: "F8_E4M3", bytes: 1 }),
    ("float8_e5m2", "", Dtype { name: "F8_E5M2", bytes: 1 }),
    ("float8_e8m0fnu", "", Dtype { name: "F8_E8M0", bytes: 1 }),
    ("float8_e4m3fnuz", "", Dtype { name: "F8_E4M3FNUZ", bytes: 1 }),
    ("float8_e5m2fnuz", "", Dtype { name: "F8_E5M2FNUZ", bytes: 1 }),
];

impl Dtype {
    /// The one that PyTorch calls so.
    pub(crate) fn called(name: &str) -> Option<Self> {
        DTYPES.iter().find(|(own, ..)| *own == name).map(|(.., dtype)| *dtype)
    }

    /// That of the elements of a storage that is called so.
    pub(crate) fn of_storage(name: &str) -> Option<Self> {
        let is_it = |storage: &str| !storage.is_empty() && storage == name;
        DTYPES.iter().find(|(_, storage, _)| is_it(storage)).map(|(.., dtype)| *dtype)
    }
}
