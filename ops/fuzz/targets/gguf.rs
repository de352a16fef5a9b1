//! GGUF files: any bytes are parsed or refused, and what was parsed can be read.
#![no_main]
#![forbid(unsafe_code)]

use aqueduct_gguf::Gguf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let Ok(gguf) = Gguf::parse(file) else { return };
    for field in gguf.fields() {
        let _ = (field.u64(), field.f64(), field.bool(), field.str());
        let _ = (field.strs().map(<[&str]>::len), field.i32s(), field.f32s());
    }
    let bytes: u64 = gguf.tensors().map(|tensor| tensor.bytes.len() as u64).sum();
    for tensor in gguf.tensors() {
        assert_eq!(tensor.ty.bytes_of(tensor.elements()), Some(tensor.bytes.len() as u64));
    }
    std::hint::black_box(bytes);
});
