/*
 * The process that holds a pod's namespaces, for x86-64.
 *
 *     as -o pause.o pause-amd64.S && objcopy -O binary pause.o pause-amd64
 *
 * The file is the program: its ELF headers are written out here, so that no linker has a say in its bytes.
 *
 * It sleeps in one system call until SIGTERM or SIGINT. They are blocked, so one that comes before the call is waiting
 * for it, and one sent to PID 1 is not dropped for want of a handler. SIGCHLD is ignored, by which the kernel itself
 * reaps what the pod's other processes leave behind: nothing wakes up for it.
 */
        .intel_syntax noprefix
        .text

        .equ    BASE, 0x400000
        .equ    SYS_rt_sigaction, 13
        .equ    SYS_rt_sigprocmask, 14
        .equ    SYS_rt_sigtimedwait, 128
        .equ    SYS_exit_group, 231
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
        .short  2, 62                   /* ET_EXEC, EM_X86_64 */
        .long   1
        .quad   BASE + (start - file)   /* entry */
        .quad   segments - file
        .quad   0                       /* no sections */
        .long   0
        .short  64, 56, 2, 0, 0, 0      /* size of this header, of a program header, and how many */
segments:
        .long   1, 5                    /* PT_LOAD, readable and executable: the whole file */
        .quad   0, BASE, BASE, end - file, end - file, 0x1000
        .long   0x6474e551, 6           /* PT_GNU_STACK: a stack that is not executable */
        .quad   0, 0, 0, 0, 0, 16

start:
        mov     eax, SYS_rt_sigprocmask
        mov     edi, SIG_BLOCK
        lea     rsi, [rip + ends]
        xor     edx, edx
        mov     r10d, SIGNAL_SET_SIZE
        syscall
        mov     eax, SYS_rt_sigaction
        mov     edi, SIGCHLD
        lea     rsi, [rip + ignore]
        xor     edx, edx
        mov     r10d, SIGNAL_SET_SIZE
        syscall
wait:
        mov     eax, SYS_rt_sigtimedwait
        lea     rdi, [rip + ends]
        xor     esi, esi
        xor     edx, edx
        mov     r10d, SIGNAL_SET_SIZE
        syscall
        cmp     eax, -EINTR             /* stopped and continued */
        je      wait
        mov     edi, eax
        shr     edi, 31                 /* exit code 0 after a signal, 1 should the call itself fail */
        mov     eax, SYS_exit_group
        syscall

        .balign 8, 0
ends:
        .quad   1 << (SIGINT - 1) | 1 << (SIGTERM - 1)
ignore:
        .quad   SIG_IGN, 0, 0, 0        /* handler, flags, restorer, mask */
end:
