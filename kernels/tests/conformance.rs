//! Every backend of this crate passes the conformance suite.

mod reference {
    aqueduct_kernels::conformance_tests!(Some(aqueduct_kernels::Reference));
}

/// The fast backend on one instruction set and so many threads, where this processor has it.
fn cpu(isa: aqueduct_kernels::IsaLevel, threads: usize) -> Option<aqueduct_kernels::Cpu> {
    let options = aqueduct_kernels::CpuOptions { threads, isa: Some(isa) };
    isa.is_available().then(|| aqueduct_kernels::Cpu::new(options).expect("threads start"))
}

mod cpu_portable {
    aqueduct_kernels::conformance_tests!(super::cpu(aqueduct_kernels::IsaLevel::Portable, 2));
}

#[cfg(target_arch = "x86_64")]
mod cpu_avx2 {
    aqueduct_kernels::conformance_tests!(super::cpu(aqueduct_kernels::IsaLevel::Avx2, 1));
}

#[cfg(target_arch = "x86_64")]
mod cpu_avxvnni {
    aqueduct_kernels::conformance_tests!(super::cpu(aqueduct_kernels::IsaLevel::AvxVnni, 2));
}

#[cfg(target_arch = "x86_64")]
mod cpu_avx512 {
    aqueduct_kernels::conformance_tests!(super::cpu(aqueduct_kernels::IsaLevel::Avx512, 2));
}

#[cfg(target_arch = "x86_64")]
mod cpu_avx512vnni {
    aqueduct_kernels::conformance_tests!(super::cpu(aqueduct_kernels::IsaLevel::Avx512Vnni, 2));
}

#[cfg(target_arch = "x86_64")]
mod cpu_avx512bf16 {
    aqueduct_kernels::conformance_tests!(super::cpu(aqueduct_kernels::IsaLevel::Avx512Bf16, 2));
}

#[cfg(target_arch = "x86_64")]
mod cpu_amx {
    aqueduct_kernels::conformance_tests!(super::cpu(aqueduct_kernels::IsaLevel::Amx, 2));
}

#[cfg(target_arch = "aarch64")]
mod cpu_neon {
    aqueduct_kernels::conformance_tests!(super::cpu(aqueduct_kernels::IsaLevel::Neon, 2));
}

#[test]
fn cpu_results_do_not_depend_on_thread_count() {
    use aqueduct_kernels::conformance::threads::results_do_not_depend_on_thread_count;
    for isa in aqueduct_kernels::IsaLevel::available() {
        for threads in [2, 3, 8] {
            let [one, many] = [1, threads].map(|threads| cpu(isa, threads).expect("available"));
            results_do_not_depend_on_thread_count(&one, &many);
        }
    }
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
