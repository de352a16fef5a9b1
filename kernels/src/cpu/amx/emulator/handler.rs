//! The signal: from an interrupted thread's registers to its tiles and its memory.

use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::OnceLock;

use super::decode::{Address, Base, Instruction, Operation, decode};
use super::machine::{Fault, Machine};

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

/// Does what the interrupted instruction would, and goes on behind it.
///
/// Allocates nothing and takes no lock: it may have interrupted anything. It was not
/// interrupted itself, since the only signal that it answers is caused by its own thread.
extern "C" fn on_illegal(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: SA_SIGINFO handlers are given the interrupted thread's context, theirs to change.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = Registers(&mut context.uc_mcontext.gregs);
    let here = registers.next_instruction();
    // SAFETY: the processor refused the instruction there after it had read it; no byte is
    // read that the instruction does not have.
    let bytes = (0..LONGEST).map(|idx| unsafe { *with_exposed_provenance::<u8>(here + idx) });
    match decode(bytes) {
        Some(instruction) => {
            let next = here + instruction.length;
            registers.0[libc::REG_RIP as usize] = next as i64;
            let outcome = MACHINE.with(|machine| {
                // SAFETY: the interrupted code executed this instruction, and so vouches for
                // the memory that it reads and writes.
                unsafe { execute(&mut machine.borrow_mut(), &registers, instruction) }
            });
            if let Err(fault) = outcome {
                die(fault);
            }
        }
        None => restore(),
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
    }
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
