//! Links libtorch from `$LIBTORCH_PATH/lib` and declares the one symbol that only this build of it has.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBTORCH_PATH");
    let libtorch = libtorch_home();
    println!(
        "cargo:rustc-link-search=native={}",
        libtorch.join("lib").display()
    );
    println!("cargo:rustc-link-lib=dylib=torch");
    let bindings =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("kernels.rs");
    fs::write(&bindings, declaration(&kernels_symbol(&libtorch))).expect("OUT_DIR can be written");
}

fn libtorch_home() -> PathBuf {
    let home = env::var_os("LIBTORCH_PATH").filter(|value| !value.is_empty());
    let home = PathBuf::from(home.unwrap_or_else(|| {
        panic!("LIBTORCH_PATH is not set: point it at a libtorch variant, such as libtorch/precompiled/cpu")
    }));
    if !home.join("lib").is_dir() {
        panic!(
            "LIBTORCH_PATH is {}, which has no lib/: that is no libtorch",
            home.display()
        );
    }
    home
}

/// `2.10.0+cu128` in `build-version` means that the library exports `torch_kernels_2_10_0_cu128`.
fn kernels_symbol(libtorch: &Path) -> String {
    let file = libtorch.join("build-version");
    let build =
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {}", file.display(), error));
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!(
        "torch_kernels_{}",
        build.trim().chars().map(plain).collect::<String>()
    )
}

fn declaration(symbol: &str) -> String {
    format!(
        "extern \"C\" {{\n    #[link_name = \"{}\"]\n    fn torch_kernels() -> c_int;\n}}\n",
        symbol
    )
}
