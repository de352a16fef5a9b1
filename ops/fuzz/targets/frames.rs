//! Hand-off frames: a stream of any bytes is put together or refused, and what was put together
//! can be handed on.
#![no_main]
#![forbid(unsafe_code)]

use aqueduct_proto::convert::frame::{Assembler, FrameError, check, split};
use aqueduct_proto::convert::notice::Notice;
use aqueduct_proto::v1::HandOffFrame;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|stream: &[u8]| {
    let mut stream = stream;
    let mut assembler = Assembler::default();
    while let Ok(mut frame) = HandOffFrame::decode_length_delimited(&mut stream) {
        mend(&mut frame);
        if Notice::is_in(&frame) {
            if let Ok(notice) = Notice::of(&frame, u64::MAX) {
                assert!(notice.to_frame() == Ok(frame));
            }
        } else if let Ok(Some((set, payload))) = assembler.accept(frame) {
            assert!(split(&set, payload).is_ok());
        }
    }
});

/// Sets the checksum right in half of the frames: mutation would hardly ever get past it.
fn mend(frame: &mut HandOffFrame) {
    if let Err(FrameError::Checksum { seen, carried }) = check(frame)
        && carried % 2 == 0
    {
        frame.crc32 = seen;
    }
}
