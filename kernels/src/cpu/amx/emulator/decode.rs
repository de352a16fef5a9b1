//! The instructions of AMX as bytes: VEX.128.0F38.W0 with opcodes 49, 4B, 5C and 5E.

/// A tile's number.
pub(super) type TileIndex = usize;

/// A general register's number, 0 to 15, as encodings have it.
pub(super) type Register = usize;

/// One instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) operation: Operation,
    /// Its length in bytes.
    pub(super) length: usize,
}

/// What it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// `ldtilecfg`
    LoadConfig(Address),
    /// `sttilecfg`
    StoreConfig(Address),
    /// `tilerelease`
    Release,
    /// `tilezero`
    Zero(TileIndex),
    /// `tileloadd`, and `tileloaddt1`, whose hint changes nothing.
    Load(TileIndex, Address),
    /// `tilestored`
    Store(TileIndex, Address),
    /// `tdp*`: sums, left factor, right factor.
    Multiply(Product, [TileIndex; 3]),
}

/// What is multiplied; for integers, whether those of the left and the right are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Product {
    Bf16,
    Int8 { left_signed: bool, right_signed: bool },
}

/// An operand in memory: `base + displacement`, and `index << shift` for a row's stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) base: Base,
    pub(super) index: Option<Register>,
    pub(super) shift: u8,
    pub(super) displacement: i32,
}

/// What an address counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Nothing,
    Register(Register),
    NextInstruction,
}

/// What the VEX prefix says besides that it is one of ours.
struct Prefix {
    /// High bits of the register, index and base fields.
    r: bool,
    x: bool,
    b: bool,
    /// The register in the prefix.
    v: usize,
    /// Which of none, 66, F3, F2 is folded in.
    folded: u8,
}

/// Bytes of one instruction, counted.
struct Bytes<I> {
    bytes: I,
    taken: usize,
}

impl<I: Iterator<Item = u8>> Bytes<I> {
    fn next(&mut self) -> Option<u8> {
        self.taken += 1;
        self.bytes.next()
    }
}

/// The instruction at the front of `bytes`, of which no more are taken than it has; none if it
/// is not of AMX, or if its encoding is not allowed.
pub(super) fn decode(bytes: impl Iterator<Item = u8>) -> Option<Instruction> {
    let mut bytes = Bytes { bytes, taken: 0 };
    let prefix = prefix(&mut bytes)?;
    let opcode = bytes.next()?;
    let modrm = bytes.next()?;
    let operation = match (opcode, modrm >> 6) {
        (0x49, 3) => tile_alone(&prefix, modrm)?,
        (0x49, _) => config(&prefix, modrm, &mut bytes)?,
        (0x4b, 0..3) => transfer(&prefix, modrm, &mut bytes)?,
        (0x5c | 0x5e, 3) => multiply(&prefix, opcode, modrm)?,
        _ => return None,
    };
    Some(Instruction { operation, length: bytes.taken })
}

/// C4, then inverted R, X and B over the map (2 is 0F38), then W, inverted v, L and the fold.
fn prefix(bytes: &mut Bytes<impl Iterator<Item = u8>>) -> Option<Prefix> {
    if bytes.next()? != 0xc4 {
        return None;
    }
    let first = bytes.next()?;
    if first & 0x1f != 2 {
        return None;
    }
    let second = bytes.next()?;
    if second & 0x84 != 0 {
        return None;
    }
    Some(Prefix {
        r: first & 0x80 == 0,
        x: first & 0x40 == 0,
        b: first & 0x20 == 0,
        v: usize::from(!second >> 3 & 15),
        folded: second & 3,
    })
}

/// A register field with its high bit; as a tile, none above 7.
fn register(high: bool, field: u8) -> usize {
    usize::from(field & 7) | usize::from(high) << 3
}

fn tile(number: usize) -> Option<TileIndex> {
    (number < 8).then_some(number)
}

fn tile_alone(prefix: &Prefix, modrm: u8) -> Option<Operation> {
    if prefix.v != 0 || modrm & 7 != 0 {
        return None;
    }
    match (prefix.folded, modrm) {
        (0, 0xc0) => Some(Operation::Release),
        (3, _) => Some(Operation::Zero(tile(register(prefix.r, modrm >> 3))?)),
        _ => None,
    }
}

fn config(
    prefix: &Prefix,
    modrm: u8,
    bytes: &mut Bytes<impl Iterator<Item = u8>>,
) -> Option<Operation> {
    if prefix.v != 0 || modrm >> 3 & 7 != 0 {
        return None;
    }
    let operation = match prefix.folded {
        0 => Operation::LoadConfig,
        1 => Operation::StoreConfig,
        _ => return None,
    };
    Some(operation(address(prefix, modrm, bytes)?))
}

fn transfer(
    prefix: &Prefix,
    modrm: u8,
    bytes: &mut Bytes<impl Iterator<Item = u8>>,
) -> Option<Operation> {
    // Without an index there is no stride: the form is reserved.
    if prefix.v != 0 || modrm & 7 != 4 {
        return None;
    }
    let operation = match prefix.folded {
        1 | 3 => Operation::Load,
        2 => Operation::Store,
        _ => return None,
    };
    Some(operation(tile(register(prefix.r, modrm >> 3))?, address(prefix, modrm, bytes)?))
}

fn multiply(prefix: &Prefix, opcode: u8, modrm: u8) -> Option<Operation> {
    let int8 = |left_signed, right_signed| Product::Int8 { left_signed, right_signed };
    let product = match (opcode, prefix.folded) {
        (0x5c, 2) => Product::Bf16,
        (0x5e, 0) => int8(false, false),
        (0x5e, 1) => int8(false, true),
        (0x5e, 2) => int8(true, false),
        (0x5e, 3) => int8(true, true),
        _ => return None,
    };
    let sums = tile(register(prefix.r, modrm >> 3))?;
    let left = tile(register(prefix.b, modrm))?;
    Some(Operation::Multiply(product, [sums, left, tile(prefix.v)?]))
}

/// What mod, r/m, a SIB byte and a displacement say.
fn address(
    prefix: &Prefix,
    modrm: u8,
    bytes: &mut Bytes<impl Iterator<Item = u8>>,
) -> Option<Address> {
    let form = modrm >> 6;
    let mut here = Address { base: Base::Nothing, index: None, shift: 0, displacement: 0 };
    let base = if modrm & 7 == 4 {
        let sib = bytes.next()?;
        let index = register(prefix.x, sib >> 3);
        here.index = (index != 4).then_some(index);
        here.shift = sib >> 6;
        sib
    } else {
        modrm
    };
    let is_bare = form == 0 && base & 7 == 5;
    here.base = match is_bare {
        true if modrm & 7 == 4 => Base::Nothing,
        true => Base::NextInstruction,
        false => Base::Register(register(prefix.b, base)),
    };
    here.displacement = match form {
        1 => i32::from(bytes.next()? as i8),
        0 if !is_bare => 0,
        _ => {
            let four = [bytes.next()?, bytes.next()?, bytes.next()?, bytes.next()?];
            i32::from_le_bytes(four)
        }
    };
    Some(here)
}
