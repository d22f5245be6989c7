//! A disk as a power loss leaves it: the file operations of a recording, each with its state of durability.
//!
//! Data of a file is durable after a sync of that file which began after the write. A name is durable after a sync of
//! its directory; for a rename, of the directory that contains the new name. A rename is atomic. Everything else may be
//! on the disk or not, and a [`Fate`] chooses from that:
//!
//! ```text
//!   names     none | all | the first n | any subset of the operations that are not synced
//!   data      none | all | the first n bytes | those and zeros up to a later size | any subset of blocks
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::recording::FileEvent;

/// The sizes of the blocks of which a subset reaches the disk.
const BLOCK_BYTES: [usize; 2] = [512, 4096];

/// The index of a file or directory.
type InodeId = usize;

/// An operation on the contents of a file.
#[derive(Clone, Debug)]
enum ContentChange {
    Write { offset: usize, data: Range<usize> },
    Truncate(usize),
}

/// A file or a directory.
#[derive(Clone, Debug, Default)]
struct Inode {
    is_directory: bool,
    durable: Vec<u8>,
    /// The number of changes that are durable.
    synced: usize,
    pending: Vec<ContentChange>,
}

/// An operation on names.
#[derive(Clone, Debug)]
enum NameChange {
    Add(String, InodeId),
    Remove(String),
    Rename(String, String, InodeId),
}

impl NameChange {
    /// The directory whose sync makes the change durable.
    fn directory(&self) -> &str {
        match self {
            NameChange::Add(path, _) | NameChange::Remove(path) | NameChange::Rename(_, path, _) => parent(path),
        }
    }
}

/// The data that a sync under way covers.
enum SyncCoverage {
    Changes(InodeId, usize),
    Names(String, u64),
}

/// The fate of data that is not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFate {
    /// It is lost.
    Lost,
    /// It is on the disk.
    Kept,
    /// The first bytes are on the disk.
    Prefix,
    /// The first bytes are on the disk, and the size is that of later ones.
    Zeros,
    /// Any blocks are on the disk.
    Holes,
}

/// The fate of names that are not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFate {
    /// No change is on the disk.
    Lost,
    /// All changes are on the disk.
    Kept,
    /// The first changes are on the disk.
    Prefix,
    /// Any changes are on the disk.
    Subset,
}

/// The fate of everything that is not synced.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// The data.
    pub data: DataFate,
    /// The names.
    pub names: NameFate,
}

impl DataFate {
    /// Returns the fate with this name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Lost, Self::Kept, Self::Prefix, Self::Zeros, Self::Holes];
        all.into_iter()
            .find(|fate| format!("{fate:?}").eq_ignore_ascii_case(name))
    }
}

impl Fate {
    /// Draws a fate.
    pub fn random(rng: &mut fastrand::Rng) -> Self {
        let data = match rng.u32(0..100) {
            0..15 => DataFate::Lost,
            15..30 => DataFate::Kept,
            30..65 => DataFate::Prefix,
            65..90 => DataFate::Zeros,
            _ => DataFate::Holes,
        };
        let names = match rng.u32(0..100) {
            0..25 => NameFate::Lost,
            25..50 => NameFate::Kept,
            50..75 => NameFate::Prefix,
            _ => NameFate::Subset,
        };
        Fate { data, names }
    }
}

/// The state of the disk after a power loss: the contents of files, `None` for directories.
pub type Image = BTreeMap<String, Option<Vec<u8>>>;

/// A disk.
pub struct Disk {
    bytes: Arc<Vec<u8>>,
    inodes: Vec<Inode>,
    open: HashMap<u64, InodeId>,
    syncs: HashMap<u64, SyncCoverage>,
    current: BTreeMap<String, InodeId>,
    durable: BTreeMap<String, InodeId>,
    pending: Vec<(u64, NameChange)>,
    next_change: u64,
}

impl Disk {
    /// Creates a disk with the contents of an image, all of it durable. Data of later writes is in `bytes`.
    pub fn new(image: &Image, bytes: Arc<Vec<u8>>) -> Self {
        let root = Inode {
            is_directory: true,
            ..Inode::default()
        };
        let mut disk = Disk {
            bytes,
            inodes: vec![root],
            open: HashMap::new(),
            syncs: HashMap::new(),
            current: BTreeMap::from([(".".to_owned(), 0)]),
            durable: BTreeMap::from([(".".to_owned(), 0)]),
            pending: Vec::new(),
            next_change: 0,
        };
        for (path, content) in image {
            let id = disk.add_inode(content.is_none());
            disk.inodes[id].durable = content.clone().unwrap_or_default();
            disk.current.insert(path.clone(), id);
            disk.durable.insert(path.clone(), id);
        }
        disk
    }

    fn add_inode(&mut self, is_directory: bool) -> InodeId {
        self.inodes.push(Inode {
            is_directory,
            ..Inode::default()
        });
        self.inodes.len() - 1
    }

    fn change_names(&mut self, change: NameChange) {
        apply_name_change(&mut self.current, &change);
        self.pending.push((self.next_change, change));
        self.next_change += 1;
    }

    fn change_content(&mut self, file: u64, change: ContentChange) -> Result<(), String> {
        let id = self.open.get(&file).ok_or("an operation on an unknown file")?;
        self.inodes[*id].pending.push(change);
        Ok(())
    }

    /// Performs the operation of a record.
    ///
    /// # Errors
    /// Fails if the record does not fit to those before it.
    pub fn apply(&mut self, event: &FileEvent) -> Result<(), String> {
        match event {
            FileEvent::Open {
                file,
                path,
                is_created,
                is_truncated,
                is_directory,
            } => {
                let id = match self.current.get(path) {
                    Some(id) if !is_created => *id,
                    _ => {
                        if !is_created {
                            return Err(format!("{path} was opened, but never created"));
                        }
                        let id = self.add_inode(*is_directory);
                        self.change_names(NameChange::Add(path.clone(), id));
                        id
                    }
                };
                self.open.insert(*file, id);
                if *is_truncated {
                    self.inodes[id].pending.push(ContentChange::Truncate(0));
                }
            }
            FileEvent::Write { file, offset, data } => {
                let (offset, data) = (*offset as usize, data.clone());
                self.change_content(*file, ContentChange::Write { offset, data })?;
            }
            FileEvent::Truncate { file, size } => {
                self.change_content(*file, ContentChange::Truncate(*size as usize))?;
            }
            FileEvent::SyncBegin { file, sync } => self.begin_sync(*file, *sync)?,
            FileEvent::SyncEnd { sync } => self.end_sync(*sync)?,
            FileEvent::Rename { from, to } => {
                let id = *self
                    .current
                    .get(from)
                    .ok_or_else(|| format!("{from} is renamed, but missing"))?;
                self.change_names(NameChange::Rename(from.clone(), to.clone(), id));
            }
            FileEvent::Link { from, to } => {
                let id = *self
                    .current
                    .get(from)
                    .ok_or_else(|| format!("{from} is linked, but missing"))?;
                self.change_names(NameChange::Add(to.clone(), id));
            }
            FileEvent::Unlink { path } => self.change_names(NameChange::Remove(path.clone())),
            FileEvent::MakeDirectory { path } => {
                let id = self.add_inode(true);
                self.change_names(NameChange::Add(path.clone(), id));
            }
            FileEvent::Fault { .. } | FileEvent::Marker(_) => {}
        }
        Ok(())
    }

    fn begin_sync(&mut self, file: u64, sync: u64) -> Result<(), String> {
        let id = *self.open.get(&file).ok_or("a sync of an unknown file")?;
        let inode = &self.inodes[id];
        let coverage = if inode.is_directory {
            let path = self.current.iter().find(|(_, other)| **other == id);
            SyncCoverage::Names(
                path.map_or_else(String::new, |(path, _)| path.clone()),
                self.next_change,
            )
        } else {
            SyncCoverage::Changes(id, inode.synced + inode.pending.len())
        };
        self.syncs.insert(sync, coverage);
        Ok(())
    }

    fn end_sync(&mut self, sync: u64) -> Result<(), String> {
        match self.syncs.remove(&sync).ok_or("the end of an unknown sync")? {
            SyncCoverage::Changes(id, count) => {
                let inode = &mut self.inodes[id];
                let covered = count.saturating_sub(inode.synced);
                for change in inode.pending.drain(..covered) {
                    apply_content_change(&mut inode.durable, &change, &self.bytes);
                }
                inode.synced += covered;
            }
            SyncCoverage::Names(directory, before) => {
                let is_covered =
                    |(number, change): &(u64, NameChange)| *number < before && change.directory() == directory;
                for change in self.pending.iter().filter(|change| is_covered(change)) {
                    apply_name_change(&mut self.durable, &change.1);
                }
                self.pending.retain(|change| !is_covered(change));
            }
        }
        Ok(())
    }

    /// Returns what the disk contains if the power fails now.
    pub fn lose_power(&self, fate: Fate, rng: &mut fastrand::Rng) -> Image {
        let mut names = self.durable.clone();
        let first = rng.usize(0..=self.pending.len());
        for (index, (_, change)) in self.pending.iter().enumerate() {
            let is_kept = match fate.names {
                NameFate::Lost => false,
                NameFate::Kept => true,
                NameFate::Prefix => index < first,
                NameFate::Subset => rng.bool(),
            };
            if is_kept {
                apply_name_change(&mut names, change);
            }
        }
        let mut contents: HashMap<InodeId, Vec<u8>> = HashMap::new();
        let mut image = Image::new();
        for (path, id) in names.iter().filter(|(path, _)| *path != ".") {
            // Without its directory a file cannot be found.
            if !names.contains_key(parent(path)) {
                continue;
            }
            let inode = &self.inodes[*id];
            let content = contents
                .entry(*id)
                .or_insert_with(|| self.content(inode, fate.data, rng));
            image.insert(path.clone(), (!inode.is_directory).then(|| content.clone()));
        }
        image
    }

    fn content(&self, inode: &Inode, fate: DataFate, rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut content = inode.durable.clone();
        if inode.pending.is_empty() {
            return content;
        }
        match fate {
            DataFate::Lost => {}
            DataFate::Kept => {
                for change in &inode.pending {
                    apply_content_change(&mut content, change, &self.bytes);
                }
            }
            DataFate::Prefix => self.apply_prefix(&mut content, inode, rng),
            DataFate::Zeros => {
                self.apply_prefix(&mut content, inode, rng);
                let end = inode.pending.iter().map(end_of_change).max().unwrap_or(0);
                if end > content.len() {
                    let size = match rng.bool() {
                        true => end,
                        false => rng.usize(content.len()..=end),
                    };
                    content.resize(size, 0);
                }
            }
            DataFate::Holes => self.apply_blocks(&mut content, inode, rng),
        }
        content
    }

    /// Applies the first changes, and a part of the next one.
    fn apply_prefix(&self, content: &mut Vec<u8>, inode: &Inode, rng: &mut fastrand::Rng) {
        let whole = rng.usize(0..inode.pending.len());
        for change in &inode.pending[..whole] {
            apply_content_change(content, change, &self.bytes);
        }
        if let ContentChange::Write { offset, data } = &inode.pending[whole] {
            let any = offset + rng.usize(0..=data.len());
            let end = match rng.u32(0..3) {
                0 => any,
                1 => any / 512 * 512,
                _ => any / 4096 * 4096,
            };
            let data = data.start..data.start + end.saturating_sub(*offset);
            let offset = *offset;
            apply_content_change(content, &ContentChange::Write { offset, data }, &self.bytes);
        }
    }

    /// Applies a random subset of the blocks of all changes.
    fn apply_blocks(&self, content: &mut Vec<u8>, inode: &Inode, rng: &mut fastrand::Rng) {
        let block = BLOCK_BYTES[rng.usize(0..2)];
        let missing = [10, 50, 90][rng.usize(0..3)];
        for change in &inode.pending {
            match change {
                ContentChange::Truncate(_) if rng.u32(0..100) < missing => {}
                ContentChange::Truncate(_) => apply_content_change(content, change, &self.bytes),
                ContentChange::Write { offset, data } => {
                    let (mut at, end) = (*offset, offset + data.len());
                    while at < end {
                        let next = ((at / block + 1) * block).min(end);
                        if rng.u32(0..100) >= missing {
                            let data = data.start + at - offset..data.start + next - offset;
                            let part = ContentChange::Write { offset: at, data };
                            apply_content_change(content, &part, &self.bytes);
                        }
                        at = next;
                    }
                }
            }
        }
    }
}

fn end_of_change(change: &ContentChange) -> usize {
    match change {
        ContentChange::Write { offset, data } => offset + data.len(),
        ContentChange::Truncate(_) => 0,
    }
}

fn apply_content_change(content: &mut Vec<u8>, change: &ContentChange, bytes: &[u8]) {
    match change {
        ContentChange::Truncate(size) => content.resize(*size, 0),
        ContentChange::Write { data, .. } if data.is_empty() => {}
        ContentChange::Write { offset, data } => {
            let end = offset + data.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[*offset..end].copy_from_slice(&bytes[data.clone()]);
        }
    }
}

fn apply_name_change(names: &mut BTreeMap<String, InodeId>, change: &NameChange) {
    match change {
        NameChange::Add(path, id) => {
            names.insert(path.clone(), *id);
        }
        NameChange::Remove(path) => {
            names.remove(path);
        }
        NameChange::Rename(from, to, id) => {
            if names.get(from) == Some(id) {
                names.remove(from);
            }
            names.insert(to.clone(), *id);
        }
    }
}

/// The directory that contains a path.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(directory, _)| directory)
}

/// Writes an image to a new directory.
///
/// # Errors
/// Fails if a file cannot be written.
pub fn write_image(image: &Image, directory: &Path) -> Result<(), String> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(failed(directory))?;
    }
    fs::create_dir_all(directory).map_err(failed(directory))?;
    for (name, content) in image {
        let path = directory.join(name);
        match content {
            None => fs::create_dir_all(&path).map_err(failed(&path))?,
            Some(content) => fs::write(&path, content).map_err(failed(&path))?,
        }
    }
    Ok(())
}

/// Reads a directory as an image.
///
/// # Errors
/// Fails if a file cannot be read.
pub fn read_image(directory: &Path) -> Result<Image, String> {
    let mut image = Image::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(here) = left.pop() {
        let entries = fs::read_dir(&here).map_err(|error| format!("{}: {error}", here.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.strip_prefix(directory).map_err(|error| error.to_string())?;
            let name = name.to_string_lossy().into_owned();
            if path.is_dir() {
                image.insert(name, None);
                left.push(path);
            } else {
                let content = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                image.insert(name, Some(content));
            }
        }
    }
    Ok(image)
}

#[cfg(test)]
mod tests;
