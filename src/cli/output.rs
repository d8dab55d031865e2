//! Standard output that may be closed by its reader at any time, and how a command fails.

use std::io::{self, Write};

use crate::client::ClientError;

const BUFFER_BYTES: usize = 64 << 10;

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// The reader of standard output has gone (EPIPE): nothing more to do.
    OutputClosed,
    /// One line for standard error.
    Told(String),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Failure::Told(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Told(format!("cannot write: {error}")),
        }
    }
}

/// Buffered standard output.
pub struct Output {
    out: io::BufWriter<io::StdoutLock<'static>>,
}

impl Output {
    pub fn stdout() -> Self {
        Self { out: io::BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock()) }
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    pub fn line(&mut self, line: impl std::fmt::Display) -> Result<(), Failure> {
        Ok(writeln!(self.out, "{line}")?)
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    pub fn finish(mut self) -> Result<(), Failure> {
        self.flush()
    }
}

/// Rows under headings, each column as wide as its widest cell.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(headings.to_vec());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "22".to_owned()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME  N\na     1\nlong  22\n");
    }
}
