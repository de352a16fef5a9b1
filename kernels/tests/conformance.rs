//! Every backend of this crate passes the conformance suite.

mod reference {
    aqueduct_kernels::conformance_tests!(Some(aqueduct_kernels::Reference));
}

/// The fast backend on one instruction set and so many threads, where this processor has it.
fn cpu(isa: aqueduct_kernels::IsaLevel, threads: usize) -> Option<aqueduct_kernels::Cpu> {
    let options = aqueduct_kernels::CpuOptions { threads, isa: Some(isa) };
    isa.is_available().then(|| aqueduct_kernels::Cpu::new(options).expect("threads start"))
}

/// The suite with so many threads, and the same bits with any number of them.
macro_rules! cpu_tests {
    ($isa:expr, $threads:expr) => {
        use aqueduct_kernels::IsaLevel;

        aqueduct_kernels::conformance_tests!(super::cpu($isa, $threads));

        #[test]
        fn results_do_not_depend_on_thread_count() {
            let Some(one) = super::cpu($isa, 1) else { return };
            let others = [2, 3, 8].map(|threads| super::cpu($isa, threads).expect("available"));
            aqueduct_kernels::conformance::threads::results_do_not_depend_on_thread_count(
                &one, &others,
            );
        }
    };
}

mod cpu_portable {
    cpu_tests!(IsaLevel::Portable, 2);
}

#[cfg(target_arch = "x86_64")]
mod cpu_avx2 {
    cpu_tests!(IsaLevel::Avx2, 1);
}

#[cfg(target_arch = "x86_64")]
mod cpu_avxvnni {
    cpu_tests!(IsaLevel::AvxVnni, 2);
}

#[cfg(target_arch = "x86_64")]
mod cpu_avx512 {
    cpu_tests!(IsaLevel::Avx512, 2);
}

#[cfg(target_arch = "x86_64")]
mod cpu_avx512vnni {
    cpu_tests!(IsaLevel::Avx512Vnni, 2);
}

#[cfg(target_arch = "x86_64")]
mod cpu_avx512bf16 {
    cpu_tests!(IsaLevel::Avx512Bf16, 2);
}

#[cfg(target_arch = "x86_64")]
mod cpu_amx {
    cpu_tests!(IsaLevel::Amx, 2);
}

#[cfg(target_arch = "aarch64")]
mod cpu_neon {
    cpu_tests!(IsaLevel::Neon, 2);
}

#[test]
fn layers_of_random_shapes_are_near_the_definition() {
    use aqueduct_kernels::conformance::random;
    let cpu = aqueduct_kernels::Cpu::new(aqueduct_kernels::CpuOptions::default()).unwrap();
    for seed in 0..12 {
        let figures = random::layer(&cpu, seed, 90);
        let worst = figures.output_error.max(figures.mass_error).max(figures.spent_error);
        assert!(worst < 5e-3, "{figures:?}");
        assert!(figures.agreed + 1 >= figures.kept, "{figures:?}");
    }
}
