//! What every backend must do: run with [`conformance_tests!`](crate::conformance_tests).
//!
//! Each check computes with the backend under test, and compares with a direct implementation
//! in f64 that shares no code with any backend. A check panics with the comparator's words.

pub mod attention;
pub mod batch;
pub mod cells;
pub mod chains;
pub mod huge;
pub mod int8;
pub mod layers;
pub mod mass;
pub mod merging;
pub mod random;
pub mod recurrent;
pub mod refusals;
pub mod selection;
pub mod sight;
pub mod threads;
pub mod tiles;

mod near;
mod oracle;
mod plain;
mod scene;

use crate::backend::Backend;

/// One check: panics with the comparator's words.
pub type Check = fn(&dyn Backend);

/// Every check with its name, for programs that run them.
pub const CHECKS: &[(&str, Check)] = crate::conformance_checks!(listed);

/// One `#[test]` for every check, on the backend that the expression makes: an `Option`, as this
/// machine may be unable to have it; then the test says so, and that is all.
#[macro_export]
macro_rules! conformance_tests {
    ($backend:expr) => {
        $crate::conformance_checks! { tests $backend }
    };
}

/// Runs a check, or says that there is nothing here to run it on.
#[doc(hidden)]
pub fn run(check: Check, backend: Option<impl Backend>) {
    match backend {
        Some(backend) => check(&backend),
        None => eprintln!("left out: this machine has no such backend"),
    }
}

/// The list of all checks, as tests on a backend or as a slice.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_checks {
    ($what:ident $($backend:expr)?) => {
        $crate::conformance_checks! { @$what $($backend)? =>
            merging::merge_with_empty_is_the_identity,
            merging::merge_is_commutative_bit_for_bit,
            merging::merge_is_associative,
            merging::a_backend_merges_as_defined,
            merging::maximum_gaps_up_to_1e4,
            attention::logits_within_100,
            attention::logits_beyond_1e4,
            attention::keys_that_are_alike_weigh_alike,
            attention::online_softmax_with_wide_gaps,
            attention::empty_memory,
            attention::one_token_blocks,
            attention::rows_that_see_nothing_are_empty,
            attention::grouped_and_multi_head,
            attention::head_sizes,
            attention::kv_dtypes,
            attention::model_sliding_window,
            attention::capped_logits,
            attention::falling_logits,
            attention::lengths_around_a_tile,
            batch::rows_are_projected_at_their_own_positions,
            batch::blocks_attend_as_they_do_alone,
            batch::a_broken_block_ends_alone,
            cells::scattered_cells_give_the_same_bits,
            mass::column_sums_match_a_manual_sum,
            mass::a_row_spends_exactly_one_per_query_head,
            mass::a_row_that_saw_nothing_spends_nothing,
            mass::sinks_have_a_share_and_no_value,
            mass::row_weight_modes,
            mass::one_pass_gives_the_same_bits,
            mass::a_leaf_may_have_all_keys_of_one_head,
            mass::folded_sets_give_the_same_bits,
            mass::an_output_is_rounded_only_where_the_next_weight_is,
            tiles::rows_and_keys_around_a_tile,
            tiles::states_of_halves,
            tiles::groups_of_query_heads,
            tiles::only_the_last_rows_vote,
            tiles::halves_and_wholes_meet_bit_for_bit,
            tiles::many_rows_over_scattered_cells,
            tiles::heavy_hitters_are_the_definitions,
            tiles::broken_numbers_in_a_tile,
            sight::sight_begins_around_tiles,
            sight::rows_far_behind_what_is_remembered,
            sight::states_within_sight,
            sight::sight_changes_no_other_bit,
            selection::total_order_with_ties,
            selection::nan_ranks_last,
            selection::keep_all_keeps_everything,
            selection::sets_are_selected_as_they_are_alone,
            selection::a_shared_past_is_not_changed,
            selection::heads_keep_equally_many,
            selection::a_shard_keeps_what_rows_behind_it_see,
            chains::every_policy_follows_the_definition,
            chains::edge_lengths,
            chains::scores_are_aligned_with_positions,
            chains::cumulative_scores_never_decrease,
            chains::no_leak_across_a_chunk_boundary,
            chains::local_and_hot_tokens_present_per_kv_head,
            chains::memory_propagates_over_chunks,
            layers::linear_matches_f64,
            layers::norm_matches_f64,
            huge::huge_rows_are_no_zeros,
            layers::embed_widens_exactly,
            layers::project_matches_f64,
            layers::finish_matches_f64,
            layers::experts_beside_a_dense_part,
            layers::experts_of_weighed_rows,
            layers::queries_beside_keys_of_another_layer,
            layers::layers_take_inputs_of_their_own,
            layers::caps_match_f64,
            layers::a_row_does_not_depend_on_its_neighbours,
            int8::linear_sums_integers_in_groups,
            int8::scales_of_every_size,
            int8::embed_multiplies_out,
            int8::an_int8_row_stands_alone,
            int8::broken_int8_is_refused,
            recurrent::rules_follow_the_definition,
            recurrent::a_cut_changes_no_bit,
            recurrent::rows_recur_as_they_do_alone,
            recurrent::a_broken_state_is_refused,
            recurrent::gates_and_first_products_match,
            refusals::wrong_shapes_are_named,
            refusals::foreign_weights_are_refused,
            refusals::broken_numbers_are_refused,
        }
    };
    (@listed => $($group:ident::$check:ident,)+) => {
        &[$((concat!(stringify!($group), "::", stringify!($check)), $group::$check),)+]
    };
    (@tests $backend:expr => $($group:ident::$check:ident,)+) => {
        $(
            #[test]
            fn $check() {
                $crate::conformance::run($crate::conformance::$group::$check, $backend);
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    /// A check that nobody runs proves nothing.
    #[test]
    fn the_macro_lists_every_check() {
        let list = include_str!("conformance.rs");
        let groups = [
            ("attention", include_str!("conformance/attention.rs")),
            ("batch", include_str!("conformance/batch.rs")),
            ("cells", include_str!("conformance/cells.rs")),
            ("chains", include_str!("conformance/chains.rs")),
            ("int8", include_str!("conformance/int8.rs")),
            ("layers", include_str!("conformance/layers.rs")),
            ("mass", include_str!("conformance/mass.rs")),
            ("merging", include_str!("conformance/merging.rs")),
            ("recurrent", include_str!("conformance/recurrent.rs")),
            ("refusals", include_str!("conformance/refusals.rs")),
            ("selection", include_str!("conformance/selection.rs")),
            ("sight", include_str!("conformance/sight.rs")),
            ("tiles", include_str!("conformance/tiles.rs")),
        ];
        for (group, source) in groups {
            let check = |line: &'static str| {
                line.strip_prefix("pub fn ")?.strip_suffix("(backend: &dyn Backend) {")
            };
            let checks: Vec<_> = source.lines().filter_map(check).collect();
            assert!(!checks.is_empty(), "no check found in {group}");
            for check in checks {
                assert!(list.contains(&format!(" {group}::{check},\n")), "{group}::{check}");
            }
        }
    }
}
