//! How the past reaches a block's queries: what a caller may ask for, and what it came to.

use aqueduct_core::work::Traffic;
use aqueduct_core::{Exchange, Refusal, WireDtype};

use crate::v1;

impl From<Exchange> for v1::Exchange {
    fn from(exchange: Exchange) -> Self {
        match exchange {
            Exchange::Move => Self::Move,
            Exchange::Stay => Self::Stay,
            Exchange::Auto => Self::Auto,
        }
    }
}

/// The exchange that was named; `None` where the sender left it open.
///
/// # Errors
/// A number that stands for none.
pub fn exchange(wire: i32) -> Result<Option<Exchange>, Refusal> {
    match v1::Exchange::try_from(wire) {
        Ok(v1::Exchange::Unspecified) => Ok(None),
        Ok(v1::Exchange::Move) => Ok(Some(Exchange::Move)),
        Ok(v1::Exchange::Stay) => Ok(Some(Exchange::Stay)),
        Ok(v1::Exchange::Auto) => Ok(Some(Exchange::Auto)),
        Err(_) => Err(Refusal::new("exchange", wire, "move, stay or auto")),
    }
}

impl From<WireDtype> for v1::WireDtype {
    fn from(wire: WireDtype) -> Self {
        match wire {
            WireDtype::F32 => Self::F32,
            WireDtype::Bf16 => Self::Bf16,
            WireDtype::F16 => Self::F16,
        }
    }
}

/// The dtype that was named; `None` where the sender left it open.
///
/// # Errors
/// A number that stands for none.
pub fn wire_dtype(wire: i32) -> Result<Option<WireDtype>, Refusal> {
    match v1::WireDtype::try_from(wire) {
        Ok(v1::WireDtype::Unspecified) => Ok(None),
        Ok(v1::WireDtype::F32) => Ok(Some(WireDtype::F32)),
        Ok(v1::WireDtype::Bf16) => Ok(Some(WireDtype::Bf16)),
        Ok(v1::WireDtype::F16) => Ok(Some(WireDtype::F16)),
        Err(_) => Err(Refusal::new("wire", wire, "f32, bf16 or f16")),
    }
}

impl From<Traffic> for v1::Traffic {
    fn from(traffic: Traffic) -> Self {
        let Traffic { sent_bytes, received_bytes, asked, fetched, spared_bytes } = traffic;
        Self { sent_bytes, received_bytes, asked, fetched, spared_bytes }
    }
}

impl From<v1::Traffic> for Traffic {
    fn from(wire: v1::Traffic) -> Self {
        let v1::Traffic { sent_bytes, received_bytes, asked, fetched, spared_bytes } = wire;
        Self { sent_bytes, received_bytes, asked, fetched, spared_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_gaps_left_open() {
        for one in [Exchange::Move, Exchange::Stay, Exchange::Auto] {
            assert_eq!(exchange(v1::Exchange::from(one).into()), Ok(Some(one)));
        }
        for one in [WireDtype::F32, WireDtype::Bf16, WireDtype::F16] {
            assert_eq!(wire_dtype(v1::WireDtype::from(one).into()), Ok(Some(one)));
        }
        assert_eq!((exchange(0), wire_dtype(0)), (Ok(None), Ok(None)));
        assert_eq!(exchange(4).unwrap_err().field, "exchange");
        assert_eq!(wire_dtype(-1).unwrap_err().field, "wire");
    }
}
