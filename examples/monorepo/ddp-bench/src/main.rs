//! `ddp-bench`: says which libtorch it runs with.

use std::env;
use std::ffi::CStr;
use std::os::raw::{c_char, c_int};
use std::process::exit;

#[cfg(all(feature = "cuda", feature = "rocm"))]
compile_error!(
    "the features cuda and rocm exclude each other: a libtorch is built for one of them"
);

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

extern "C" {
    fn torch_variant() -> *const c_char;
    fn torch_build_version() -> *const c_char;
}

const FEATURE: &str = if cfg!(feature = "cuda") {
    "cuda"
} else if cfg!(feature = "rocm") {
    "rocm"
} else {
    "none"
};

fn text(function: unsafe extern "C" fn() -> *const c_char) -> String {
    // The library returns pointers to string literals.
    unsafe { CStr::from_ptr(function()) }
        .to_string_lossy()
        .into_owned()
}

fn bench() {
    let status = unsafe { torch_kernels() };
    if status != 0 {
        eprintln!("ddp-bench: libtorch's kernels answered {}", status);
        exit(1);
    }
    println!(
        "ddp-bench: libtorch {} (build {}), feature {}",
        text(torch_variant),
        text(torch_build_version),
        FEATURE
    );
}

fn main() {
    match env::args().nth(1).as_deref() {
        None => bench(),
        Some("--version") => println!("ddp-bench {}", env!("CARGO_PKG_VERSION")),
        Some(other) => {
            eprintln!(
                "ddp-bench: {} is unknown; usage: ddp-bench [--version]",
                other
            );
            exit(2);
        }
    }
}
