//! An array whose rows lie in pages.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::{Page, Pool};
use crate::array::Resident;
use crate::backend::BackendError;

/// `[rows, width]`: row r lies in page r / [`cells`](Self::cells). As many rows as the pages have.
///
/// A clone shares every page; whoever changes a row of a shared page first takes one of its own.
#[derive(Debug)]
pub(crate) struct Paged<T> {
    pool: Pool,
    pages: Vec<Page>,
    width: usize,
    cells: usize,
    elements: PhantomData<T>,
}

impl<T> Clone for Paged<T> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), pages: self.pages.clone(), ..*self }
    }
}

impl<T: Pod> Paged<T> {
    /// No rows of `width` elements.
    ///
    /// # Panics
    /// Where the pool's pages are not full of such rows: a bug of the caller.
    pub(crate) fn empty(pool: &Pool, width: usize) -> Self {
        let (page_bytes, row_bytes) = (pool.0.page_bytes, width * size_of::<T>());
        let cells = page_bytes.checked_div(row_bytes).unwrap_or_default();
        let are_full = cells > 0 && cells * row_bytes == page_bytes;
        assert!(are_full, "rows of {row_bytes} bytes in pages of {page_bytes}");
        Self { pool: pool.clone(), pages: Vec::new(), width, cells, elements: PhantomData }
    }

    /// Rows of a page: [`PAGE_CELLS`](super::PAGE_CELLS) of those that the pool was made for, and
    /// fewer of wider ones.
    pub(crate) fn cells(&self) -> usize {
        self.cells
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Rows from `idx` on, all in one page.
    #[inline(always)]
    pub(crate) fn rows(&self, idx: usize, count: usize) -> &[T] {
        let page = self.pages[idx / self.cells].elements();
        &page[idx % self.cells * self.width..][..count * self.width]
    }

    /// Rows from `idx` on, all in one page, to be changed; the page becomes this array's own, out
    /// of `fresh`, where it is shared.
    ///
    /// # Panics
    /// Where a fresh page is needed and there is none: a bug of the caller, who can ask
    /// [`is_shared`](Self::is_shared).
    pub(crate) fn rows_mut(
        &mut self,
        (idx, count): (usize, usize),
        fresh: &mut Vec<Page>,
    ) -> &mut [T] {
        let page = &mut self.pages[idx / self.cells];
        if page.is_shared() {
            let mut own = fresh.pop().expect("a fresh page for every shared one");
            let rows = own.elements_mut().expect("a fresh page is not shared");
            rows.copy_from_slice(page.elements::<T>());
            *page = own;
        }
        let rows = page.elements_mut().expect("not shared, or no longer");
        &mut rows[idx % self.cells * self.width..][..count * self.width]
    }

    /// Whether row `idx` lies in a page that somebody else holds too.
    pub(crate) fn is_shared(&self, idx: usize) -> bool {
        self.pages[idx / self.cells].is_shared()
    }

    /// Turns `heads` times `from` pages into `heads` times `to`: of each head the last ones go,
    /// or come out of `fresh`.
    pub(crate) fn restride(&mut self, heads: usize, to: usize, fresh: &mut Vec<Page>) {
        let from = self.pages.len() / heads.max(1);
        let mut old = std::mem::take(&mut self.pages).into_iter();
        for _ in 0..heads {
            self.pages.extend(old.by_ref().take(from.min(to)));
            old.by_ref().take(from.saturating_sub(to)).for_each(drop);
            let added = to.saturating_sub(from);
            self.pages.extend(fresh.drain(fresh.len() - added..));
        }
    }
}

impl<T: Pod + Send + Sync> Resident<T> for Paged<T> {
    fn count(&self) -> usize {
        self.pages.len() * self.cells * self.width
    }

    fn fetch(&self) -> Result<Vec<T>, BackendError> {
        Ok(self.pages.iter().flat_map(Page::elements).copied().collect())
    }
}
