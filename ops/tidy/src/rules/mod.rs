//! The rules, one subject a file.

pub mod arrows;
pub mod banned;
pub mod budgets;
pub mod comments;
pub mod layout;
pub mod links;
pub mod mentions;
pub mod tour;
pub mod versions;
