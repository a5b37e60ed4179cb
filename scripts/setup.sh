#!/usr/bin/env bash
# Sets up everything that the other make targets need, and does nothing when nothing changed:
#   1. .venv with the packages of requirements.lock, each checked against its hash
#   2. this package, editable, with the command `semistream`
#   3. a Java runtime for the Spark parts, where one is missing and can be installed
#   4. a PostgreSQL server for the tests of its sink, likewise
#   5. a MariaDB server for tests of masters in databases and for bench peers, likewise
#   6. Chromium for the tests of the dashboard, likewise
#   7. the compiled kernels in their on-disk cache
#
# Usage: scripts/setup.sh           all of it
#        scripts/setup.sh java      only step 3
#        scripts/setup.sh postgres  only step 4
#        scripts/setup.sh mariadb   only step 5
#        scripts/setup.sh chromium  only step 6
# PYTHON=/path/to/python3.12 chooses another interpreter for a new .venv.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv=.venv
readonly stamp=$venv/.installed
readonly kernels_stamp=$venv/.kernels
readonly min_java=17

say() { printf '==> %s\n' "$*" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# --- system packages -----------------------------------------------------------------------

can_apt() {
  command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 "$@" >&2
}

apt_refreshed=no
apt_refresh() {
  [ "$apt_refreshed" = yes ] && return
  as_root apt-get update -q >&2 || warn "apt-get update failed; going on with the package lists at hand."
  apt_refreshed=yes
}

# --- Python --------------------------------------------------------------------------------

new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Prints the interpreter to use: $PYTHON if set, else python3, else the newest python3.X around.
find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    new_enough "$PYTHON" && printf '%s\n' "$PYTHON"
    return
  fi
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}

python_problem() {
  local found
  found=$("${PYTHON:-python3}" --version 2>&1) || found="no ${PYTHON:-python3}"
  die "semistream needs Python 3.11 or newer, and found $found." \
    "Hint: install a newer Python and name it, for example: make install PYTHON=python3.12"
}

# Debian keeps venv and ensurepip in a package of their own.
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

make_venv() {
  local python
  if ! python=$(find_python); then
    if [ -z "${PYTHON:-}" ] && ! command -v python3 >/dev/null && can_apt; then
      say "Installing python3 (no Python was found)"
      apt_refresh
      apt_install python3 python3-venv || true
    fi
    python=$(find_python) || python_problem
  fi
  if ! has_venv "$python"; then
    local package
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if can_apt; then
      say "Installing $package ($python has no venv module)"
      apt_refresh
      apt_install "$package" || apt_install python3-venv || true
    fi
    has_venv "$python" ||
      die "$python cannot create virtual environments: its modules venv and ensurepip are missing." \
        "Hint: on Debian or Ubuntu run: sudo apt-get install $package"
  fi
  say "Creating $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
}

# A .venv that was moved with its folder, or whose Python is gone, is made anew.
venv_works() {
  [ -x $venv/bin/python ] && new_enough $venv/bin/python &&
    [ "$(cat $venv/.home 2>/dev/null)" = "$PWD" ]
}

# pip, setuptools and hatchling come first, from the same lock, so that what is built from source
# afterwards (pyspark, this package) needs no build environment of unpinned packages.
install_packages() {
  local pip=($venv/bin/python -m pip --disable-pip-version-check --no-input)
  say "Installing the packages of requirements.lock (the first time this downloads about 700 MB)"
  awk '/^[a-z]/ { keep = /^(pip|setuptools)==/ } keep' requirements.lock >$venv/build-tools.txt
  "${pip[@]}" install --quiet --require-hashes --no-deps -r $venv/build-tools.txt >&2
  "${pip[@]}" install --require-hashes --no-deps --no-build-isolation -r requirements.lock >&2
  "${pip[@]}" install --quiet --no-deps --no-build-isolation -e . >&2
}

# --- Java ----------------------------------------------------------------------------------

# Prints the major version of the Java that Spark would start; fails if there is none.
java_major() {
  local java=java version
  if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi
  version=$("$java" -version 2>&1) || return 1
  # openjdk version "17.0.15" 2025-04-15, or 1.8.0_402 before Java 9
  version=$(sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' <<<"$version" | head -n 1)
  [ -n "$version" ] && printf '%s\n' "$version"
}

has_java() {
  local major
  major=$(java_major) && [ "$major" -ge $min_java ]
}

# Never fails: only the Spark parts need Java.
ensure_java() {
  has_java && return
  local package
  if can_apt; then
    say "Installing a Java runtime (the Spark parts need Java $min_java or newer)"
    apt_refresh
    # Slim images lack this folder, and the Java package's set-up fails without it.
    as_root mkdir -p /usr/share/man/man1 || true
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
      apt_install "$package" && break
    done
    has_java && return
  fi
  local found
  found=$(java_major) && found="Java $found" || found="none"
  cat >&2 <<TEXT
warning: No Java $min_java or newer (found: ${found}${JAVA_HOME:+, JAVA_HOME=$JAVA_HOME}), and it could not be installed from here.
  Everything but the Spark parts (semistream.spark) works without it.
  Hint: install one and run 'make java' to check, for example
          Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless
          Fedora           sudo dnf install java-21-openjdk-headless
          macOS            brew install openjdk@17
        and where several are installed, set JAVA_HOME to the folder of the newer one.
TEXT
}

# --- PostgreSQL ----------------------------------------------------------------------------

# The same places that semistream.testing.postgres looks at.
has_postgres() {
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null
}

# Never fails: only tests need it. They start a server of their own, so Debian's package is kept
# from making and starting one for the whole machine.
ensure_postgres() {
  has_postgres && return
  local config=/etc/postgresql-common/createcluster.conf
  if can_apt; then
    say "Installing PostgreSQL (tests of the PostgreSQL sink start a server of their own)"
    apt_refresh
    apt_install postgresql-common &&
      as_root sed -i 's/^#* *create_main_cluster *=.*/create_main_cluster = false/' $config || true
    apt_install postgresql || true
    has_postgres && return
  fi
  cat >&2 <<TEXT
warning: No PostgreSQL server, and it could not be installed from here.
  Only the tests of the PostgreSQL sink need it; they are skipped.
  Hint: install one and run 'scripts/setup.sh postgres' to check, for example
          Debian, Ubuntu   sudo apt-get install postgresql
          Fedora           sudo dnf install postgresql-server
          macOS            brew install postgresql
TEXT
}

# --- MariaDB -------------------------------------------------------------------------------

# The same places that semistream.testing.mariadb looks at.
has_mariadb() {
  command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || [ -x /usr/libexec/mariadbd ]
}

# Never fails: only tests and comparisons need it. They start servers of their own, so
# Debian's package is kept from starting one for the whole machine: a program policy-rc.d that
# refuses is how Debian's packages are told, and it is removed again if it was not there before.
ensure_mariadb() {
  has_mariadb && return
  local policy=/usr/sbin/policy-rc.d
  if can_apt; then
    say "Installing MariaDB (tests and bench peers start servers of their own)"
    apt_refresh
    if [ -e $policy ]; then
      apt_install mariadb-server || true
    else
      printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
      as_root chmod +x $policy
      apt_install mariadb-server || true
      as_root rm -f $policy
    fi
    has_mariadb && return
  fi
  cat >&2 <<TEXT
warning: No MariaDB server, and it could not be installed from here.
  Only tests of masters in MariaDB and semistream bench peers need it; both leave it out.
  Hint: install one and run 'scripts/setup.sh mariadb' to check, for example
          Debian, Ubuntu   sudo apt-get install mariadb-server
          Fedora           sudo dnf install mariadb-server
          macOS            brew install mariadb
TEXT
}

# --- Chromium ------------------------------------------------------------------------------

# The same names that semistream.testing.browser looks for.
has_chromium() {
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
    command -v google-chrome >/dev/null
}

# Never fails: only tests and the script that takes the pictures of the dashboard need it. The
# fonts are for the pictures; without them a page still shows.
ensure_chromium() {
  has_chromium && return
  if can_apt; then
    say "Installing Chromium (tests of the dashboard open it in a real browser)"
    apt_refresh
    apt_install chromium || true
    apt_install fonts-inter || true
    has_chromium && return
  fi
  cat >&2 <<TEXT
warning: No Chromium, and it could not be installed from here.
  Only the tests of the dashboard's page need it; they are skipped.
  Hint: install one and run 'scripts/setup.sh chromium' to check, for example
          Debian           sudo apt-get install chromium
          Fedora           sudo dnf install chromium
TEXT
}

# --- kernels -------------------------------------------------------------------------------

kernels_digest() {
  find src/semistream/kernels src/semistream/warm_up.py -name '*.py' -exec cat {} + | cksum
}

# Compiles the kernels into their cache, anew when any of them changed: numba looks only at the file
# that a kernel stands in, and would keep one whose parts in other files are new. A failure here
# only means that they are compiled at their first use.
warm_up_kernels() {
  local digest
  digest=$(kernels_digest)
  [ "$(cat $kernels_stamp 2>/dev/null)" = "$digest" ] && return
  say "Compiling the kernels (this takes a minute or two)"
  find src/semistream/kernels -name '*.nb[ci]' -delete
  if $venv/bin/python -m semistream.warm_up >&2; then
    printf '%s\n' "$digest" >$kernels_stamp
  else
    warn "the kernels could not be compiled now; each will be at its first use."
  fi
}

# --- all of it -----------------------------------------------------------------------------

if [ "${1:-}" = java ]; then
  ensure_java
  if has_java; then say "Java $(java_major) is there."; fi
  exit
fi

if [ "${1:-}" = postgres ]; then
  ensure_postgres
  if has_postgres; then say "PostgreSQL is there."; fi
  exit
fi

if [ "${1:-}" = mariadb ]; then
  ensure_mariadb
  if has_mariadb; then say "MariaDB is there."; fi
  exit
fi

if [ "${1:-}" = chromium ]; then
  ensure_chromium
  if has_chromium; then say "Chromium is there."; fi
  exit
fi

digest=$(cat requirements.lock pyproject.toml scripts/setup.sh | cksum)
if ! venv_works; then
  make_venv
  printf '%s\n' "$PWD" >$venv/.home
fi
if [ "$(cat $stamp 2>/dev/null)" != "$digest" ]; then
  rm -f $stamp
  install_packages
  ensure_java
  ensure_postgres
  ensure_mariadb
  ensure_chromium
  printf '%s\n' "$digest" >$stamp
  say "Installed. The command is $venv/bin/semistream"
fi
warm_up_kernels
