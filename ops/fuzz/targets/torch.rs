//! Files of PyTorch: any bytes are parsed or refused, as a file and as the pickle of one, and what
//! was parsed can be read.
#![no_main]
#![forbid(unsafe_code)]

use aqueduct_torch::{Data, TorchFile, write};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    // Mutation would hardly ever make both an archive and what its pickle says.
    read(&write::archive(bytes, &[&[1; 64], &[2; 64]]));
});

fn read(file: &[u8]) {
    let Ok(torch) = TorchFile::parse(file) else { return };
    for tensor in torch.tensors() {
        if let Data::InOrder(bytes) = tensor.data {
            let elements: usize = tensor.shape.iter().product();
            assert_eq!(bytes.len(), elements * tensor.dtype.bytes);
        }
    }
}
