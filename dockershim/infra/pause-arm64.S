/*
 * The process that holds a pod's namespaces, for arm64. How it works is told in pause-amd64.S.
 *
 *     aarch64-linux-gnu-as -o pause.o pause-arm64.S && aarch64-linux-gnu-objcopy -O binary pause.o pause-arm64
 */
        .text

        .equ    BASE, 0x400000
        .equ    SYS_exit_group, 94
        .equ    SYS_rt_sigaction, 134
        .equ    SYS_rt_sigprocmask, 135
        .equ    SYS_rt_sigtimedwait, 137
        .equ    SIGINT, 2
        .equ    SIGTERM, 15
        .equ    SIGCHLD, 17
        .equ    SIG_BLOCK, 0
        .equ    SIG_IGN, 1
        .equ    EINTR, 4
        .equ    SIGNAL_SET_SIZE, 8

file:
        .ascii  "\177ELF"
        .byte   2, 1, 1, 0              /* 64 bits, little endian, version 1, System V */
        .quad   0
        .short  2, 183                  /* ET_EXEC, EM_AARCH64 */
        .long   1
        .quad   BASE + (start - file)   /* entry */
        .quad   segments - file
        .quad   0                       /* no sections */
        .long   0
        .short  64, 56, 2, 0, 0, 0      /* size of this header, of a program header, and how many */
segments:
        .long   1, 5                    /* PT_LOAD, readable and executable: the whole file */
        .quad   0, BASE, BASE, end - file, end - file, 0x10000
        .long   0x6474e551, 6           /* PT_GNU_STACK: a stack that is not executable */
        .quad   0, 0, 0, 0, 0, 16

start:
        mov     x8, SYS_rt_sigprocmask
        mov     x0, SIG_BLOCK
        adr     x1, ends
        mov     x2, 0
        mov     x3, SIGNAL_SET_SIZE
        svc     0
        mov     x8, SYS_rt_sigaction
        mov     x0, SIGCHLD
        adr     x1, ignore
        mov     x2, 0
        mov     x3, SIGNAL_SET_SIZE
        svc     0
wait:
        mov     x8, SYS_rt_sigtimedwait
        adr     x0, ends
        mov     x1, 0
        mov     x2, 0
        mov     x3, SIGNAL_SET_SIZE
        svc     0
        cmn     w0, EINTR               /* stopped and continued */
        b.eq    wait
        lsr     w0, w0, 31              /* exit code 0 after a signal, 1 should the call itself fail */
        mov     x8, SYS_exit_group
        svc     0

        .balign 8, 0
ends:
        .quad   1 << (SIGINT - 1) | 1 << (SIGTERM - 1)
ignore:
        .quad   SIG_IGN, 0, 0, 0        /* handler, flags, restorer, mask */
end:
