//! Libraries that are loaded while the program runs, and never closed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Handle of a dynamic library that is loaded, and never closed.
#[derive(Clone, Copy, Debug)]
pub struct Handle(*mut c_void);

/// Flag `RTLD_NOW` of `dlopen`, which resolves all symbols at once.
pub const NOW: c_int = 2;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

impl Handle {
    /// Loads a dynamic library, or finds it if it is loaded already. `None` if it cannot be loaded.
    pub fn open(path: &CStr, flags: c_int) -> Option<Handle> {
        // SAFETY: `path` is a C string; what a library does when it is loaded is the choice of the user that names it.
        let library = unsafe { dlopen(path.as_ptr(), flags) };
        (!library.is_null()).then_some(Handle(library))
    }

    /// Opens the library whose path the environment variable `variable` contains, and returns it with its path. If the
    /// variable is not set, opens the first one of the `usual` paths that can be opened. All paths are tried with one
    /// set of flags before the next set.
    ///
    /// # Errors
    /// Returns the paths that were tried, separated by commas, if no library can be opened.
    pub fn find(variable: &str, usual: fn() -> Vec<Vec<u8>>, flags: &[c_int]) -> Result<(Handle, String), String> {
        let named = std::env::var_os(variable).filter(|path| !path.is_empty());
        let paths = named.map_or_else(usual, |path| vec![path.into_encoded_bytes()]);
        let shown = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        for flags in flags {
            for path in &paths {
                let library = CString::new(path.clone()).ok().and_then(|path| Handle::open(&path, *flags));
                if let Some(library) = library {
                    return Ok((library, shown(path)));
                }
            }
        }
        Err(paths.iter().map(shown).collect::<Vec<_>>().join(", "))
    }

    /// Returns the address of a symbol of the library; null if there is none.
    pub fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is open, and `name` is a C string.
        unsafe { dlsym(self.0, name.as_ptr()) }
    }

    /// Returns the function of this name in the library; `None` if there is none.
    ///
    /// # Safety
    /// `F` must be the type of the function of this name.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address(name);
        // SAFETY: an address that is not null is that of a function of this type, as the caller has promised.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }
}
