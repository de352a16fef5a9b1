//! The signal: from an interrupted thread's registers to its tiles and its memory.

use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::OnceLock;

use super::decode::{Address, Base, Factor, Instruction, Operation, VectorIndex, decode};
use super::machine::{Fault, Machine};
use super::vectors::{VECTOR, Vectors, dot};

thread_local! {
    // Needs neither a first use nor a destructor, so that a handler may touch it.
    static MACHINE: RefCell<Machine> = const { RefCell::new(Machine::new()) };
}

/// What the process did with illegal instructions before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Longest instruction of the processor, in bytes.
const LONGEST: usize = 15;

/// Sets the handler, once a process; false if the system refuses.
pub(super) fn install() -> bool {
    let mut before = MaybeUninit::uninit();
    // SAFETY: zeros are a valid `sigaction`. All pointers are to values of the right type that
    // outlive the calls, and `before` is written by the call that asks for it. The handler has
    // the signature that SA_SIGINFO asks for, and does only what a handler may.
    unsafe {
        if libc::sigaction(libc::SIGILL, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return false;
        }
        BEFORE.get_or_init(|| before.assume_init());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_illegal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) == 0
    }
}

/// Does what the interrupted instruction would, and all of AMX that follow it at once: a signal
/// costs far more than an instruction. Goes on behind them.
///
/// Allocates nothing and takes no lock: it may have interrupted anything. It was not
/// interrupted itself, since the only signal that it answers is caused by its own thread.
extern "C" fn on_illegal(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: SA_SIGINFO handlers are given the interrupted thread's context, theirs to change.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // SAFETY: the context is a signal's.
    let mut vectors = unsafe { Vectors::new(context.uc_mcontext.fpregs) };
    let registers = Registers(&mut context.uc_mcontext.gregs);
    let mut is_first = true;
    loop {
        let here = registers.next_instruction();
        let byte = |idx: usize| with_exposed_provenance::<u8>(here.wrapping_add(idx));
        // SAFETY: the interrupted code is at an instruction, of which it would read all bytes;
        // no byte is read that the instruction does not have.
        let Some(next) = decode((0..LONGEST).map(|idx| unsafe { *byte(idx) })) else {
            break;
        };
        registers.0[libc::REG_RIP as usize] = (here + next.length) as i64;
        // SAFETY: the interrupted code executes this instruction, and so vouches for the memory
        // that it reads and writes.
        let outcome = unsafe {
            match next.operation {
                Operation::Dot(of, factor) => execute_dot(vectors.as_mut(), &registers, of, factor),
                _ => MACHINE.with(|it| execute(&mut it.borrow_mut(), &registers, next)),
            }
        };
        if let Err(fault) = outcome {
            die(fault);
        }
        is_first = false;
    }
    if is_first {
        restore();
    }
}

/// General registers of the interrupted thread.
struct Registers<'a>(&'a mut [i64; 23]);

/// Where the system keeps the registers, in the order of their numbers in encodings.
const PLACES: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

impl Registers<'_> {
    fn get(&self, number: usize) -> usize {
        self.0[PLACES[number] as usize] as usize
    }

    fn next_instruction(&self) -> usize {
        self.0[libc::REG_RIP as usize] as usize
    }

    /// Where an operand starts and what lies between its rows.
    fn resolve(&self, address: Address) -> (usize, usize) {
        let base = match address.base {
            Base::Nothing => 0,
            Base::Register(number) => self.get(number),
            Base::NextInstruction => self.next_instruction(),
        };
        let stride = address.index.map_or(0, |number| self.get(number) << address.shift);
        (base.wrapping_add_signed(address.displacement as isize), stride)
    }
}

/// Executes one instruction; `registers` already stand behind it.
///
/// # Safety
/// Its operands in memory can be read or written.
unsafe fn execute(
    machine: &mut Machine,
    registers: &Registers<'_>,
    instruction: Instruction,
) -> Result<(), Fault> {
    match instruction.operation {
        Operation::LoadConfig(address) => {
            let (start, index) = registers.resolve(address);
            let from = with_exposed_provenance::<[u8; 64]>(start.wrapping_add(index));
            // SAFETY: the caller's; a byte array needs no alignment.
            machine.configure(&unsafe { from.read() })
        }
        Operation::StoreConfig(address) => {
            let (start, index) = registers.resolve(address);
            let to = with_exposed_provenance_mut::<[u8; 64]>(start.wrapping_add(index));
            // SAFETY: as above.
            unsafe { to.write(machine.config()) };
            Ok(())
        }
        Operation::Release => {
            machine.release();
            Ok(())
        }
        Operation::Zero(tile) => machine.zero(tile),
        Operation::Load(tile, address) => {
            let (mut here, stride) = registers.resolve(address);
            for row in machine.rows_to_load(tile)? {
                let from = with_exposed_provenance::<u8>(here);
                // SAFETY: the caller's; a tile is no memory of the interrupted code.
                unsafe { from.copy_to_nonoverlapping(row.as_mut_ptr(), row.len()) };
                here = here.wrapping_add(stride);
            }
            Ok(())
        }
        Operation::Store(tile, address) => {
            let (mut here, stride) = registers.resolve(address);
            for row in machine.rows_to_store(tile)? {
                let to = with_exposed_provenance_mut::<u8>(here);
                // SAFETY: as above.
                unsafe { to.copy_from_nonoverlapping(row.as_ptr(), row.len()) };
                here = here.wrapping_add(stride);
            }
            Ok(())
        }
        Operation::Multiply(product, tiles) => machine.multiply(product, tiles),
        Operation::Dot(..) => unreachable!("of vectors, which are no part of the machine"),
    }
}

/// Executes one product of vectors.
///
/// # Safety
/// A factor in memory can be read.
unsafe fn execute_dot(
    vectors: Option<&mut Vectors>,
    registers: &Registers<'_>,
    [sums, unsigned]: [VectorIndex; 2],
    factor: Factor,
) -> Result<(), Fault> {
    let vectors = vectors.ok_or(Fault("the system keeps no vectors of an interrupted thread"))?;
    let signed = match factor {
        Factor::Register(number) => vectors.get(number),
        Factor::Memory(address) => {
            let (start, index) = registers.resolve(address);
            let from = with_exposed_provenance::<[u8; VECTOR]>(start.wrapping_add(index));
            // SAFETY: the caller's; a byte array needs no alignment.
            unsafe { from.read() }
        }
    };
    vectors.set(sums, dot(vectors.get(sums), vectors.get(unsigned), signed));
    Ok(())
}

/// Ends the process with the processor's reason.
fn die(fault: Fault) -> ! {
    for part in ["amx emulator: ", fault.0, "\n"] {
        // SAFETY: the pointer and the length are those of a string.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: may be called from a handler.
    unsafe { libc::abort() }
}

/// Gives illegal instructions back to whom they belonged: the instruction is executed again.
fn restore() {
    if let Some(before) = BEFORE.get() {
        // SAFETY: the action is the one that the system told.
        unsafe { libc::sigaction(libc::SIGILL, before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::arch::asm;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::super::super::{is_enabled, is_native};
    use super::super::decode::Product;
    use super::super::machine::{ROW, ROWS};
    use super::*;

    type Rows = [[u8; ROW]; ROWS];

    #[repr(align(64))]
    struct Config([u8; 64]);

    /// C of m rows and n columns, A of m and k, B of k and n, in tiles 0 to 2.
    fn config([m, n, k]: [usize; 3]) -> Config {
        let mut config = [0; 64];
        config[0] = 1;
        for (tile, (rows, dwords)) in [(m, n), (m, k), (k, n)].into_iter().enumerate() {
            config[16 + 2 * tile] = 4 * dwords as u8;
            config[48 + tile] = rows as u8;
        }
        Config(config)
    }

    fn multiply(product: Product, config: &Config, tiles: &mut [Rows; 3]) {
        macro_rules! run {
            ($instruction:literal) => {
                // SAFETY: the caller asked whether tiles may be used; all tiles are whole
                // arrays, of which the configuration leaves rows and columns out.
                unsafe {
                    asm!(
                        "ldtilecfg [{config}]",
                        "tileloadd tmm0, [{sums} + {line}*8]",
                        "tileloaddt1 tmm1, [r12 + {line}*8 + 1024]",
                        "tileloadd tmm2, [{sums} + {line}*8 + 2048]",
                        concat!($instruction, " tmm0, tmm1, tmm2"),
                        "tilestored [{sums} + {line}*8], tmm0",
                        "tilerelease",
                        config = in(reg) config,
                        sums = in(reg) tiles,
                        in("r12") tiles,
                        line = in(reg) ROW / 8,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _,
                        options(nostack)
                    )
                }
            };
        }
        match product {
            Product::Bf16 => run!("tdpbf16ps"),
            Product::Int8 { left_signed: false, right_signed: false } => run!("tdpbuud"),
            Product::Int8 { left_signed: false, right_signed: true } => run!("tdpbusd"),
            Product::Int8 { left_signed: true, right_signed: false } => run!("tdpbsud"),
            Product::Int8 { left_signed: true, right_signed: true } => run!("tdpbssd"),
        }
    }

    /// The same on a machine of its own, without an instruction.
    fn model(product: Product, config: &Config, tiles: &[Rows; 3]) -> Rows {
        let mut machine = Machine::new();
        machine.configure(&config.0).unwrap();
        for (tile, from) in tiles.iter().enumerate() {
            let rows = machine.rows_to_load(tile).unwrap();
            rows.zip(from).for_each(|(to, from)| to.copy_from_slice(&from[..to.len()]));
        }
        machine.multiply(product, [0, 1, 2]).unwrap();
        let mut sums = tiles[0];
        let rows = machine.rows_to_store(0).unwrap();
        sums.iter_mut().zip(rows).for_each(|(to, from)| to[..from.len()].copy_from_slice(from));
        sums
    }

    /// Where there is AMX, this holds the model against the processor; elsewhere against what
    /// instructions do through the signal.
    #[test]
    fn instructions_do_what_the_model_does() {
        if !is_enabled() {
            return println!("skipped: no AMX and no emulator");
        }
        println!("against {}", if is_native() { "the processor" } else { "the emulator" });
        let mut seed = 1u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        let int8 = |left_signed, right_signed| Product::Int8 { left_signed, right_signed };
        let (mut sums, mut off) = (0, 0);
        for round in 0..400 {
            let mut shape = [0; 3].map(|_: usize| 1 + usize::from(next()) % 16);
            if round % 2 == 0 {
                shape = [ROWS; 3];
            }
            let mut tiles = [[[0; ROW]; ROWS]; 3];
            tiles.as_flattened_mut().as_flattened_mut().iter_mut().for_each(|x| *x = next());
            let product = match round % 5 {
                0 => int8(false, false),
                1 => int8(false, true),
                2 => int8(true, false),
                3 => int8(true, true),
                _ => Product::Bf16,
            };
            if product == Product::Bf16 {
                reals(&mut tiles, &mut next);
            }
            let config = config(shape);
            let want = model(product, &config, &tiles);
            multiply(product, &config, &mut tiles);
            if product == Product::Bf16 {
                sums += ROWS * ROW / 4;
                off += differences(&tiles[0], &want);
            } else {
                assert_eq!(tiles[0], want, "{product:?} of {shape:?}");
            }
        }
        println!("{off} of {sums} sums of bf16 differ in their bits");
        assert!(is_native() || off == 0);
    }

    /// Fills tiles with numbers between 1/16 and 16.
    fn reals(tiles: &mut [Rows; 3], next: &mut impl FnMut() -> u8) {
        let [sums, factors @ ..] = tiles;
        let mut high = || (next() & 0x83) | 0x3e;
        sums.as_flattened_mut().as_chunks_mut::<4>().0.iter_mut().for_each(|x| x[3] = high());
        let factors = factors.as_flattened_mut().as_flattened_mut();
        factors.as_chunks_mut::<2>().0.iter_mut().for_each(|x| x[1] = high());
    }

    /// How many f32 differ; panics where rounding does not explain it: 34 roundings of sums
    /// below 32 * 16 * 16 + 16.
    fn differences(seen: &Rows, want: &Rows) -> usize {
        let reals = |rows: &Rows| -> Vec<f32> {
            rows.as_flattened().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
        };
        let (seen, want) = (reals(seen), reals(want));
        for (seen, want) in seen.iter().zip(&want) {
            assert!((seen - want).abs() <= 34.0 * 8208.0 * f32::EPSILON, "{seen} for {want}");
        }
        seen.iter().zip(&want).filter(|(seen, want)| seen.to_bits() != want.to_bits()).count()
    }

    #[test]
    fn configurations_go_through_every_kind_of_address() {
        if !is_enabled() {
            return println!("skipped: no AMX and no emulator");
        }
        static SOME: Config = Config({
            let mut config = [0; 64];
            (config[0], config[16], config[48]) = (1, 12, 5);
            config
        });
        let mut seen = [[1u8; 64]; 2];
        // SAFETY: reads the static and writes `seen`, which are as long as a configuration.
        unsafe {
            asm!(
                "ldtilecfg [rip + {some}]",
                "sttilecfg [{seen} + {line}*8 - 64]",
                "tilerelease",
                "sttilecfg [{seen} + 64]",
                some = sym SOME,
                seen = in(reg) &raw mut seen,
                line = in(reg) ROW / 8,
                out("tmm0") _,
                options(nostack)
            );
        }
        assert_eq!(seen, [SOME.0, [0; 64]]);
    }

    const CHILD: &str = "AQUEDUCT_TEST_DEATH";

    /// Does something that no process survives.
    fn die_by(way: &str) {
        assert!(is_enabled());
        let whole = config([16, 16, 16]);
        let no_such = Config([2; 64]);
        let unmapped = 4096_usize;
        // SAFETY: none of these comes back.
        unsafe {
            match way {
                "ud2" => asm!("ud2"),
                "palette" => asm!("ldtilecfg [{}]", in(reg) &no_such),
                "unconfigured" => asm!("tilezero tmm0", out("tmm0") _),
                "absent" => asm!("ldtilecfg [{}]", "tilezero tmm3", in(reg) &whole, out("tmm3") _),
                "shapes" => {
                    let odd = config([16, 16, 8]);
                    asm!("ldtilecfg [{}]", "tdpbuud tmm0, tmm2, tmm1", in(reg) &odd);
                }
                "memory" => {
                    asm!("ldtilecfg [{}]", "tileloadd tmm0, [{}]", in(reg) &whole, in(reg) unmapped)
                }
                _ => panic!("{way}"),
            }
        }
        unreachable!("{way}");
    }

    #[test]
    fn what_the_processor_refuses_ends_the_process() {
        if let Ok(way) = std::env::var(CHILD) {
            return die_by(&way);
        }
        if !is_enabled() || is_native() {
            return println!("skipped: needs the emulator");
        }
        let this = concat!(module_path!(), "::what_the_processor_refuses_ends_the_process");
        let (_, this) = this.split_once("::").unwrap();
        for (way, signal, words) in [
            ("ud2", libc::SIGILL, ""),
            ("palette", libc::SIGABRT, "#GP: ldtilecfg: no such palette"),
            ("unconfigured", libc::SIGABRT, "#UD: tiles are not configured"),
            ("absent", libc::SIGABRT, "#UD: the tile has no rows"),
            ("shapes", libc::SIGABRT, "#UD: tdp: the shapes"),
            ("memory", libc::SIGSEGV, ""),
        ] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args(["--exact", this, "--nocapture"]).env(CHILD, way).output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(signal), "{way}: {said}");
            assert!(said.contains(words), "{way}: {said}");
        }
    }
}
