//! Every backend of this crate passes the conformance suite.

mod reference {
    aqueduct_kernels::conformance_tests!(aqueduct_kernels::Reference);
}
