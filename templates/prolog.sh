LC_ALL=C
export LC_ALL
# the login's own PATH first; sshd's may lack these
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin
export PATH
