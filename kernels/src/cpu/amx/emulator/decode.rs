//! The instructions of AMX as bytes: VEX.128.0F38.W0 with opcodes 49, 4B, 5C and 5E; and of
//! AVX-VNNI the one that is used: VEX.256.66.0F38.W0 with opcode 50.

/// A tile's number.
pub(super) type TileIndex = usize;

/// A general register's number, 0 to 15, as encodings have it.
pub(super) type Register = usize;

/// A vector register's number, 0 to 15.
pub(super) type VectorIndex = usize;

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
    /// `vpdpbusd` of 256 bits: sums and bytes without sign, and bytes with one.
    Dot([VectorIndex; 2], Factor),
}

/// A vector in a register or in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Factor {
    Register(VectorIndex),
    Memory(Address),
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
    /// Whether vectors have 256 bits.
    is_long: bool,
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
        (0x50, _) => dot(&prefix, modrm, &mut bytes)?,
        _ if prefix.is_long => return None,
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
    if second & 0x80 != 0 {
        return None;
    }
    Some(Prefix {
        r: first & 0x80 == 0,
        x: first & 0x40 == 0,
        b: first & 0x20 == 0,
        v: usize::from(!second >> 3 & 15),
        folded: second & 3,
        is_long: second & 4 != 0,
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

fn dot(
    prefix: &Prefix,
    modrm: u8,
    bytes: &mut Bytes<impl Iterator<Item = u8>>,
) -> Option<Operation> {
    if !prefix.is_long || prefix.folded != 1 {
        return None;
    }
    let right = match modrm >> 6 {
        3 => Factor::Register(register(prefix.b, modrm)),
        _ => Factor::Memory(address(prefix, modrm, bytes)?),
    };
    Some(Operation::Dot([register(prefix.r, modrm >> 3), prefix.v], right))
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

#[cfg(test)]
mod tests {
    use super::*;

    // Every form with every register and every way to address, as the assembler writes them,
    // in the order in which `forms` counts them up.
    std::arch::global_asm!(
        ".pushsection .rodata",
        "aqueduct_amx_forms:",
        "tilerelease",
        ".irp t, 0, 1, 2, 3, 4, 5, 6, 7",
        "tilezero tmm\\t",
        ".irp a, 0, 1, 2, 3, 4, 5, 6, 7",
        ".irp b, 0, 1, 2, 3, 4, 5, 6, 7",
        ".if (\\t - \\a) * (\\t - \\b) * (\\a - \\b)", // the assembler wants three
        "tdpbf16ps tmm\\t, tmm\\a, tmm\\b",
        "tdpbuud tmm\\t, tmm\\a, tmm\\b",
        "tdpbusd tmm\\t, tmm\\a, tmm\\b",
        "tdpbsud tmm\\t, tmm\\a, tmm\\b",
        "tdpbssd tmm\\t, tmm\\a, tmm\\b",
        ".endif",
        ".endr",
        ".endr",
        ".endr",
        "ldtilecfg [rip + 0x12345678]",
        "sttilecfg [rip - 8]",
        "ldtilecfg [0x12345678]",
        "tileloadd tmm3, [r12*4 + 0x12345678]",
        ".irp r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "{{vex}} vpdpbusd ymm\\r, ymm5, ymm12",
        "{{vex}} vpdpbusd ymm3, ymm\\r, ymm4",
        "{{vex}} vpdpbusd ymm9, ymm10, ymm\\r",
        "{{vex}} vpdpbusd ymm\\r, ymm2, [r13 + r9*4 - 0x12]",
        ".endr",
        ".irp b, rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15",
        "ldtilecfg [\\b]",
        "sttilecfg [\\b + 0x12345678]",
        "tileloadd tmm1, [\\b]",
        ".irp i, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15",
        "ldtilecfg [\\b + \\i*8 + 0x12]",
        "tileloadd tmm7, [\\b + \\i*1]",
        "tileloadd tmm0, [\\b + \\i*2 - 0x12]",
        "tileloaddt1 tmm5, [\\b + \\i*4 - 0x12345678]",
        "tilestored [\\b + \\i*1 + 0x12], tmm2",
        "tilestored [\\b + \\i*8 + 0x12345678], tmm6",
        ".endr",
        ".endr",
        "aqueduct_amx_forms_end:",
        ".popsection",
    );

    /// The bytes above.
    fn code() -> &'static [u8] {
        unsafe extern "C" {
            static aqueduct_amx_forms: u8;
            static aqueduct_amx_forms_end: u8;
        }
        // SAFETY: both lie in one section, the second behind the first; only read.
        unsafe {
            let (start, end) = (&raw const aqueduct_amx_forms, &raw const aqueduct_amx_forms_end);
            std::slice::from_raw_parts(start, end.addr() - start.addr())
        }
    }

    fn at(base: Base, index: Option<Register>, shift: u8, displacement: i32) -> Address {
        Address { base, index, shift, displacement }
    }

    /// What the bytes above mean.
    fn forms() -> Vec<Operation> {
        use Operation::*;
        let int8 = |left_signed, right_signed| Product::Int8 { left_signed, right_signed };
        let mut forms = vec![Release];
        for sums in 0..8 {
            forms.push(Zero(sums));
            for (left, right) in (0..8).flat_map(|left| (0..8).map(move |right| (left, right))) {
                let tiles = [sums, left, right];
                if sums == left || sums == right || left == right {
                    continue;
                }
                forms.push(Multiply(Product::Bf16, tiles));
                for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
                    forms.push(Multiply(int8(left, right), tiles));
                }
            }
        }
        let far = 0x1234_5678;
        forms.push(LoadConfig(at(Base::NextInstruction, None, 0, far)));
        forms.push(StoreConfig(at(Base::NextInstruction, None, 0, -8)));
        forms.push(LoadConfig(at(Base::Nothing, None, 0, far)));
        forms.push(Load(3, at(Base::Nothing, Some(12), 2, far)));
        for vector in 0..16 {
            forms.push(Dot([vector, 5], Factor::Register(12)));
            forms.push(Dot([3, vector], Factor::Register(4)));
            forms.push(Dot([9, 10], Factor::Register(vector)));
            let address = at(Base::Register(13), Some(9), 2, -0x12);
            forms.push(Dot([vector, 2], Factor::Memory(address)));
        }
        for base in (0..16).map(Base::Register) {
            forms.push(LoadConfig(at(base, None, 0, 0)));
            forms.push(StoreConfig(at(base, None, 0, far)));
            forms.push(Load(1, at(base, None, 0, 0)));
            for index in (0..16).filter(|&index| index != 4).map(Some) {
                forms.push(LoadConfig(at(base, index, 3, 0x12)));
                forms.push(Load(7, at(base, index, 0, 0)));
                forms.push(Load(0, at(base, index, 1, -0x12)));
                forms.push(Load(5, at(base, index, 2, -far)));
                forms.push(Store(2, at(base, index, 0, 0x12)));
                forms.push(Store(6, at(base, index, 3, far)));
            }
        }
        forms
    }

    #[test]
    fn every_form_is_read_as_the_assembler_wrote_it() {
        let mut code = code();
        for form in forms() {
            let seen = decode(code.iter().copied());
            let seen = seen.unwrap_or_else(|| panic!("{form:?}: {:02x?}", &code[..11]));
            assert_eq!(seen.operation, form, "{:02x?}", &code[..seen.length]);
            code = &code[seen.length..];
        }
        assert!(code.is_empty(), "{} bytes are left", code.len());
    }

    /// One wrong bit, and the processor would refuse it as well.
    #[test]
    fn nothing_else_is_read() {
        let product = [0xc4, 0xe2, 0x6a, 0x5c, 0xc1]; // tdpbf16ps tmm0, tmm1, tmm2
        let load = [0xc4, 0xe2, 0x7b, 0x4b, 0x04, 0x08]; // tileloadd tmm0, [rax + rcx]
        let config = [0xc4, 0xe2, 0x78, 0x49, 0x00]; // ldtilecfg [rax]
        let release = [0xc4, 0xe2, 0x78, 0x49, 0xc0];
        let zero = [0xc4, 0xe2, 0x7b, 0x49, 0xc0];
        let dot = [0xc4, 0xe2, 0x75, 0x50, 0xc2]; // {vex} vpdpbusd ymm0, ymm1, ymm2
        let refused = |known: &[u8], byte: usize, bits: u8| {
            assert!(decode(known.iter().copied()).is_some(), "{known:02x?}");
            let mut bytes = known.to_vec();
            bytes[byte] ^= bits;
            assert_eq!(decode(bytes.iter().copied()), None, "{bytes:02x?}");
            for length in 0..known.len() {
                assert_eq!(decode(known[..length].iter().copied()), None, "{length} {known:02x?}");
            }
        };
        for known in [&product[..], &load, &config, &release, &zero, &dot] {
            refused(known, 0, 0x01); // no VEX prefix of three bytes
            refused(known, 1, 0x01); // another map
            refused(known, 2, 0x80); // W
            refused(known, 2, 0x04); // L
            refused(known, 3, 0x80); // another opcode
        }
        refused(&product, 1, 0x80); // sums in tile 8
        refused(&product, 1, 0x20); // the left factor in tile 9
        refused(&product, 2, 0x40); // the right factor in tile 10
        refused(&product, 2, 0x01); // tdpfp16ps, which Sapphire Rapids lacks
        refused(&product, 4, 0x80); // memory
        refused(&load, 1, 0x80); // tile 8
        refused(&load, 2, 0x08); // a third register
        refused(&load, 2, 0x03); // no fold
        refused(&load, 4, 0x04); // no SIB byte
        refused(&load, 4, 0xc0); // a register
        refused(&config, 2, 0x08); // a third register
        refused(&config, 2, 0x03); // F2
        refused(&config, 4, 0x08); // another operation
        refused(&release, 4, 0x01);
        refused(&release, 4, 0x08);
        refused(&zero, 1, 0x80); // tile 8
        refused(&zero, 4, 0x01);
        refused(&dot, 2, 0x03); // vpdpbssd or its like
        refused(&dot, 3, 0x01); // vpdpbusds
        for other in [&[0x0f, 0x0b][..], &[0xc5, 0xf8, 0x77], &[0x62, 0xf2, 0x7e, 0x08, 0x5c]] {
            assert_eq!(decode(other.iter().copied()), None);
        }
    }
}
