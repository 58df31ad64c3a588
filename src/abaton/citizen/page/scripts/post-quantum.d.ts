// Bundled by the build: ML-KEM-768 and SHA3-256, which browsers lack.
export const ml_kem768: {
  encapsulate(key: Uint8Array): { cipherText: Uint8Array; sharedSecret: Uint8Array };
};
export function sha3_256(data: Uint8Array): Uint8Array;
