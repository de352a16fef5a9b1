//! The CUDA backend, on a device that is emulated.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use aqueduct_kernels::cuda::{Cuda, CudaOptions};

fn emulated(capability: u32) -> Cuda {
    let options = CudaOptions { checked: true, ..CudaOptions::default() };
    Cuda::emulated(capability, options).expect("kernels compile")
}

mod hopper {
    aqueduct_kernels::conformance_tests! { super::emulated(90) =>
        layers::linear_matches_f64,
        layers::norm_matches_f64,
        layers::embed_widens_exactly,
        layers::project_matches_f64,
        layers::finish_matches_f64,
        layers::a_row_does_not_depend_on_its_neighbours,
        int8::linear_sums_integers_in_groups,
        int8::scales_of_every_size,
        int8::embed_multiplies_out,
        int8::an_int8_row_stands_alone,
        int8::broken_int8_is_refused,
        refusals::wrong_shapes_are_named,
        refusals::foreign_weights_are_refused,
        refusals::broken_numbers_are_refused,
    }
}
